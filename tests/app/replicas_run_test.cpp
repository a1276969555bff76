// Replicas with a launcher each: one is lost, the others go on, and it comes back with the state of another.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "app/run_replicas.h"
#include "base/time_scale.h"
#include "tests/app/replica_launchers.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kReplicated =
    "tiny.yaml device=cpu precision=fp64 train.train_steps=12 train.micro_batch_size=1 "
    "checkpoint.save_interval=4 "
    "checkpoint.async_save=false parallel.data=1 ";

}  // namespace

TEST_CASE("replicas: losses are those of one process, also after a replica is lost") {
  struct Case {
    std::string model, layout;
    int replicas;
    std::string fault;  // the second replica's; it is not started again
  };
  const std::string experts =
      "model.architecture=mixtral model.moe.num_experts=4 model.moe.top_k=2 "
      "model.moe.balance.kind=switch model.moe.balance.coeff=0.1 model.moe.router.score=sigmoid "
      "model.moe.router.bias_update_rate=0.01 ";
  const auto [model, layout, replicas, fault] =
      GENERATE_COPY(values<Case>({{"", "", 2, ""},
                                  {"", "", 2, "train.step:0:7:kill"},
                                  {"", "", 3, "train.step:0:5:abort"},  // 8 micro-batches over 3 replicas
                                  {"", "", 3, "replicas.sum:0:40:kill"},
                                  {"", "", 2, "replicas.vote:0:6:kill"},
                                  {"", "", 2, "replicas.voted:0:6:kill"},
                                  {experts, "", 3, "replicas.sum:0:40:kill"},
                                  {"", "parallel.data=2 parallel.zero_stage=3", 3, "replicas.sum:1:40:kill"},
                                  {"", "parallel.tensor=2", 2, "replicas.sum:1:40:kill"},
                                  {"", "parallel.pipeline=2", 2, "train.step:0:7:kill"}}));
  TempRun one;
  REQUIRE(one.sh("run " + kReplicated + model).code == 0);
  ReplicaLaunchers r(replicas, kReplicated);
  std::string script = r.quorum(model + layout);
  for (int i = 0; i < replicas; ++i)
    script += r.start(i, model + layout, i == 1 && !fault.empty() ? "LTRAIN_FAULT=" + fault : "");
  const std::string codes = r.codes(script);
  INFO(model << layout << " " << fault << "\n" << codes << "\n" << r.texts());
  const std::string lost = fault.empty() ? "0" : "71";
  CHECK(codes == "0 " + lost + (replicas == 3 ? " 0" : ""));
  check_close(r.t.metric("lm_loss", "run-0"), one.metric("lm_loss"));
  check_close(r.t.metric("grad_norm", "run-0"), one.metric("grad_norm"));
  check_close(r.t.metric("eval_loss", "run-0"), one.metric("eval_loss"));
  if (!fault.empty()) CHECK_THAT(r.text("quorum"), Contains("replica 1 is gone"));
}

TEST_CASE("replicas: one that is lost comes back with the state of another, and training goes on meanwhile") {
  TempRun one;
  const std::string more = "train.eval_interval=0 checkpoint.save_interval=12 ";
  REQUIRE(one.sh("run " + kReplicated + more).code == 0);
  const int lost = GENERATE(0, 1);
  ReplicaLaunchers r(2, kReplicated);
  const std::string back = more + "launch.max_restarts=3 launch.restart_wait_seconds=0.1";
  std::string script = r.quorum(back);
  for (int i = 0; i < 2; ++i)
    // The other replica takes time, so that it is still there when this one comes back, with 6 of 12 steps
    // left.
    script += r.start(
        i, back, i == lost ? "LTRAIN_FAULT=train.step:0:7:kill" : "LTRAIN_FAULT=train.step:0:*:sleep=700");
  const std::string codes = r.codes(script);
  INFO(codes << "\n" << r.texts());
  CHECK(codes == "0 0");
  CHECK_THAT(r.text("quorum"),
             Contains(fmt::format("replica {} copies the state of replica {}", lost, 1 - lost)));
  check_close(r.t.metric("lm_loss", fmt::format("run-{}", 1 - lost)), one.metric("lm_loss"));
  const auto mine = r.t.metric("lm_loss", fmt::format("run-{}", lost)), whole = one.metric("lm_loss");
  REQUIRE_FALSE(mine.empty());
  CHECK(mine.back().substr(0, 3) == whole.back().substr(0, 3));
}

TEST_CASE("replicas: one that is frozen is left out, and goes on with the state of another once it is not") {
  TempRun one;
  const std::string more =
      "train.train_steps=600 train.log_interval=100 train.eval_interval=0 checkpoint.save_interval=600 "
      "replicas.timeout_seconds=3 ";
  REQUIRE(one.sh("run " + kReplicated +
                 "train.train_steps=600 train.eval_interval=0 checkpoint.save_interval=600")
              .code == 0);
  ReplicaLaunchers r(2, kReplicated);
  const auto until = [](const std::string& text, const std::string& file) {
    return fmt::format("for i in $(seq 1200); do grep -q '{}' {} && break; sleep 0.05; done\n", text, file);
  };
  const std::string script = r.quorum(more) + r.start(0, more, "LTRAIN_FAULT=train.step:0:*:sleep=10") +
                             r.start(1, more) + until("^step 100/", "replica-0") +
                             "rank=$(pgrep -P $p1)\nkill -STOP $p1 $rank\n" +
                             until("did not vote", "quorum") + "kill -CONT $p1 $rank\n";
  const std::string codes = r.codes(script);
  INFO(codes << "\n" << r.texts());
  CHECK(codes == "0 0");
  CHECK_THAT(r.text("quorum"),
             Contains(fmt::format("replica 1 did not vote within {:g} s", 3 * ltrain::time_scale())) &&
                 Contains("replica 1 copies the state of replica 0"));
  check_close(r.t.metric("lm_loss", "run-0"), one.metric("lm_loss"));
}

TEST_CASE("replicas: a signal to one ends it with 75, and a signal to all saves once") {
  ReplicaLaunchers r(2, kReplicated);
  const std::string more = "train.train_steps=100000 train.log_interval=50 train.eval_interval=0 ";
  const std::string until =
      "for i in $(seq 1200); do grep -q '^step 50/' replica-0 && break; sleep 0.05; done\n";
  const bool all = GENERATE(false, true);
  const std::string script = r.quorum(more) + r.start(0, more) + r.start(1, more) + until +
                             (all ? "kill -TERM $p0 $p1\n"
                                  : "kill -TERM $p1\nfor i in $(seq 1200); do grep -q 'replica 0 of 2 goes "
                                    "on' quorum && break; sleep 0.05; "
                                    "done\nsleep 0.3\nkill -TERM $p0\n");
  const std::string codes = r.codes(script);
  INFO(codes << "\n" << r.texts());
  CHECK(codes == "75 75");
  CHECK_THAT(r.text("replica-0"), Contains("saved run-0/checkpoints/step-"));
  if (!all) CHECK_THAT(r.text("replica-1"), !Contains("saved run-1/checkpoints/step-"));
}

TEST_CASE("replicas: what cannot work is refused by name") {
  TempRun t;
  const auto refused = [&](const std::string& arguments, const std::string& text,
                           const std::string& variables = "") {
    const Outcome o = t.sh(arguments, variables);
    INFO(arguments << "\n" << o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains(text));
  };
  const std::string two = kReplicated + "replicas.count=2 ";
  refused("slurm " + two + "--nodes 2", "processes that the script starts must be told their replica");
  refused("kube " + two + "--image a/b:1 --claim c",
          "processes that the JobSet starts must be told their replica");
  refused("run " + two, "LTRAIN_REPLICA is not set", "LTRAIN_QUORUM=127.0.0.1:1");
  refused("run " + two, "LTRAIN_QUORUM: 127.0.0.1 has no port",
          "LTRAIN_QUORUM=127.0.0.1 LTRAIN_REPLICA=0 LTRAIN_QUORUM_TOKEN=a");
  refused("quorum " + kReplicated, "replicas.count = 0: the recipe has no replicas");
  refused("quorum " + two, "LTRAIN_QUORUM_TOKEN is not set");
  // Another recipe, another token, and a number that the job does not have.
  ReplicaLaunchers r(2, kReplicated);
  const std::string script =
      r.quorum("") + r.start(0, "") +
      "for i in $(seq 1200); do grep -q 'replica 0 is there' quorum && break; sleep 0.05; done\n" +
      fmt::format(
          "LTRAIN_REPLICA=1 {0} run {1} replicas.count=2 optimizer.lr=0.5 output_dir=o > "
          "other 2>&1; LTRAIN_REPLICA=2 {0} run {1} replicas.count=2 output_dir=o > number "
          "2>&1\n",
          program(), kReplicated) +
      fmt::format(
          "LTRAIN_JOIN_TIMEOUT=1 LTRAIN_QUORUM_TOKEN=wrong LTRAIN_REPLICA=1 {} run {} replicas.count=2 "
          "output_dir=o > token 2>&1\n",
          program(), kReplicated) +
      "echo garbage > /dev/tcp/127.0.0.1/${LTRAIN_QUORUM#*:}\n" + r.start(1, "");
  const std::string codes = r.codes(script);
  INFO(codes << "\n" << r.texts());
  CHECK(codes == "0 0");
  CHECK_THAT(r.text("token"), Contains("belongs to another job"));
  CHECK_THAT(r.text("other"), Contains("optimizer.lr: 0.001 on replica 0, 0.5 on replica 1"));
  CHECK_THAT(r.text("number"), Contains("replica 2: the job has 2 replicas"));
}

TEST_CASE("replicas: each gets its share of the GPUs that this machine shows") {
  CHECK(ltrain::app::devices_of_replica("", 1, 2) == "2,3");
  CHECK(ltrain::app::devices_of_replica("4,6,7,5", 1, 2) == "7,5");
  CHECK(ltrain::app::devices_of_replica("GPU-a,GPU-b", 0, 1) == "GPU-a");
}
