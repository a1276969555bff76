// The main job, through the real launcher: train, stop, resume, evaluate, generate.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/json/json.h"
#include "tests/app/outcomes.h"
#include "tests/app/run_program.h"
#include "tests/support/outcome.h"

using namespace ltrain::test;

TEST_CASE("run trains on two processes, saves, evaluates, a second start has nothing left to do") {
  TempRun t;
  INFO(t.build().text);
  REQUIRE(t.build().code == 0);
  const Outcome first = t.sh("run tiny.yaml");
  INFO(first.text);
  REQUIRE(first.code == 0);
  CHECK(has(first, "step 6/6"));
  CHECK(has(first, "eval at step 3"));
  CHECK(t.metric("lm_loss").size() == 6);
  CHECK(t.metric("eval_loss").size() == 2);
  for (const char* file : {"recipe.yaml", "plan.json", "logs/rank-00000.log", "logs/rank-00001.log",
                           "checkpoints/step-00000006/COMMIT"})
    CHECK(std::filesystem::exists(t.folder() + "/run/" + file));
  const Outcome second = t.sh("run tiny.yaml");
  INFO(second.text);
  CHECK(second.code == 0);
  CHECK(has(second, "nothing left to do"));
  CHECK(t.sh("checkpoint verify run").code == 0);
  // Without stderr, which says how long it took.
  // One thread: ThreadSanitizer does not see libgomp's barriers.
  const std::string generate = "generate run --threads 1 --prompt 'line ' --tokens 20 --json 2> generate.log";
  const Outcome sample = t.sh(generate);
  INFO(sample.text);
  CHECK(sample.code == 0);
  CHECK(has(sample, "\"tokens\":["));
  CHECK(t.sh(generate).text == sample.text);
  CHECK(has(t.sh("eval run --threads 1"), "perplexity"));
}

TEST_CASE("profiled steps leave a trace of each rank that was asked, and say what took their time") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  const auto losses = t.metric("lm_loss");
  const Outcome o =
      t.sh("run tiny.yaml output_dir=" + t.folder() +
           "/profiled profile.step_start=2 profile.step_end=4 profile.ranks=[1,0] train.train_steps=6");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK(has(o, "profile of step 2: "));
  CHECK(has(o, "profile of step 3: "));
  CHECK(has(o, "matmul_nt"));
  CHECK(has(o, "comm/"));
  CHECK(!has(o, "profile of step 4"));
  const std::string traces = t.folder() + "/profiled/traces";
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(traces)) files += entry.is_regular_file();
  CHECK(files == 4);
  for (const char* file : {"step-2-rank-0", "step-2-rank-1", "step-3-rank-0", "step-3-rank-1"}) {
    std::ifstream in(traces + "/" + file + ".json");
    const auto j = nlohmann::json::parse(in);
    double step = 0, last = 0;
    std::map<std::string, int> seen;
    for (const auto& e : j["traceEvents"]) {
      ++seen[e["name"]];
      if (e["ph"] != "X") continue;
      if (e["name"] == "step") step = e["dur"];
      last = std::max(last, e["ts"].get<double>() + e["dur"].get<double>());
      CHECK(e["ts"].get<double>() >= 0);
    }
    CHECK(seen["attention_forward"] > 0);
    CHECK(seen["reduce_scatter"] + seen["all_reduce"] > 0);
    CHECK(seen["step"] == 1);
    CHECK(last <= step + 1);  // microseconds: nothing ends after the step
  }
  CHECK(t.metric("lm_loss", "profiled") == losses);  // it changes nothing that is computed
}

TEST_CASE("resume is bit for bit, and keeps the sample order on another number of ranks") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  const auto golden_loss = t.metric("lm_loss"), golden_norm = t.metric("grad_norm");
  const auto again_from_4 = [&](const std::string& overrides) {
    std::filesystem::remove_all(t.folder() + "/run/checkpoints/step-00000006");
    const Outcome o = t.sh("run tiny.yaml " + overrides);
    INFO(o.text);
    REQUIRE(o.code == 0);
    REQUIRE(has(o, "step 4"));
  };
  again_from_4("");
  CHECK(t.metric("lm_loss") == golden_loss);
  CHECK(t.metric("grad_norm") == golden_norm);
  SECTION("without ZeRO: the same bits") {
    again_from_4("parallel.zero_stage=0");
    CHECK(t.metric("lm_loss") == golden_loss);
    CHECK(t.metric("grad_norm") == golden_norm);
  }
  SECTION("on one rank and on four: the same losses to rounding") {
    for (const char* ranks : {"parallel.data=1", "parallel.data=4"}) {
      again_from_4(ranks);
      const auto now = t.metric("lm_loss");
      REQUIRE(now.size() == golden_loss.size());
      for (size_t i = 0; i < now.size(); ++i)
        CHECK(std::stod(now[i].substr(2)) == Approx(std::stod(golden_loss[i].substr(2))).epsilon(1e-6));
    }
  }
  SECTION("negative control: another seed gives other losses") {
    again_from_4("seed=99 checkpoint.resume_data=continue");
    CHECK(t.metric("lm_loss") != golden_loss);
  }
}

TEST_CASE("a stop signal saves and exits 75, and the next start goes on") {
  TempRun t;
  const std::string command = std::string(LTRAIN_BINARY) +
                              " run tiny.yaml train.train_steps=100000 train.eval_interval=0 "
                              "checkpoint.save_interval=0 & p=$!; for i in $(seq 1200); do grep -q "
                              "'\"step\":5[,}]' run/metrics.jsonl 2>/dev/null && break; sleep 0.05; done; ";
  const std::string signal = GENERATE(as<std::string>(), "TERM", "USR1", "INT");
  const Outcome o = t.shell_with_jobs(command + "kill -" + signal + " $p; wait $p; echo code $?");
  INFO(signal << ": " << o.text);
  CHECK(has(o, "code 75"));
  CHECK(has(o, "stopped at step"));
  const Outcome list = t.sh("checkpoint list run --json");
  CHECK(has(list, "\"valid\": true"));
  const Outcome next =
      t.sh("run tiny.yaml train.train_steps=100000 train.eval_interval=0 train.exit_duration_in_mins=0.01");
  INFO(next.text);
  CHECK(has(next, "resuming from"));
  CHECK(next.code == 75);
}

TEST_CASE(
    "saves at once (async_save: false): the same checkpoints as in the background, training waits for them") {
  TempRun t;
  const auto parameters = [&] {
    std::string all;
    for (const char* shard : {"shard-00000-of-00002.safetensors", "shard-00001-of-00002.safetensors"})
      all += read_file(t.folder() + "/run/checkpoints/step-00000006/" + shard);
    return all;
  };
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  const std::string background = parameters();
  REQUIRE(background.size() > 10000);
  std::filesystem::remove_all(t.folder() + "/run");
  const Outcome o = t.sh("run tiny.yaml checkpoint.async_save=false");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK(parameters() == background);
  for (const char* step : {"00000002", "00000004", "00000006"})
    CHECK(has(o, std::string("saved run/checkpoints/step-") + step));
  // Said before the next step begins, since the step waited for it.
  CHECK(o.text.find("saved run/checkpoints/step-00000002") < o.text.find("step 3/6"));
  CHECK(t.sh("checkpoint verify run").code == 0);
}

TEST_CASE("every rank leaves what it used beside what was planned, rank 0 says it") {
  TempRun t;
  const Outcome o = t.sh("run tiny.yaml");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK(has(o, "rank 0 used "));
  CHECK(has(o, "6 training steps"));
  CHECK_FALSE(has(o, "usage {"));
  const auto plan = nlohmann::json::parse(read_file(t.folder() + "/run/plan.json"));
  for (int rank : {0, 1}) {
    const auto used = nlohmann::json::parse(
        read_file(t.folder() + "/run/logs/usage-0000" + std::to_string(rank) + ".json"));
    CHECK(used["rank"] == rank);
    CHECK(used["steps"] == 6);
    CHECK(used["arena_bytes"] == used["plan_arena_bytes"]);  // planned bytes are real bytes
    CHECK(used["peak_rss_bytes"].get<int64_t>() > used["arena_bytes"].get<int64_t>());
    std::vector<std::string> parts;
    std::vector<double> until;
    for (const nlohmann::json& part : used["start"]) {
      parts.push_back(part["part"]), until.push_back(part["until_seconds"]);
      CHECK_FALSE(part.contains("device_bytes"));
    }
    CHECK(parts == std::vector<std::string>{"device", "plan", "groups", "program", "state", "data",
                                            "first step", "second step"});
    CHECK(std::is_sorted(until.begin(), until.end()));
    CHECK(until.front() > 0);
  }
  const auto used = nlohmann::json::parse(read_file(t.folder() + "/run/logs/usage-00000.json"));
  CHECK(used["train_wire_bytes"] == 6 * plan["ranks"][0]["wire_bytes_per_step"].get<int64_t>());
}

TEST_CASE("shared memory and Gloo train to the same bits, a run says which it used") {
  TempRun t;
  const Outcome shm = t.sh("run tiny.yaml", "LTRAIN_TRANSPORT=shm");
  INFO(shm.text);
  REQUIRE(shm.code == 0);
  CHECK(has(shm, "planned) through shared memory"));
  const auto loss = t.metric("lm_loss"), norm = t.metric("grad_norm");
  REQUIRE(loss.size() == 6);
  std::filesystem::remove_all(t.folder() + "/run");
  const Outcome gloo = t.sh("run tiny.yaml", "LTRAIN_TRANSPORT=gloo");
  INFO(gloo.text);
  REQUIRE(gloo.code == 0);
  CHECK(has(gloo, "planned) through Gloo (TCP)"));
  CHECK(t.metric("lm_loss") == loss);
  CHECK(t.metric("grad_norm") == norm);
  const Outcome neither = t.sh("run tiny.yaml", "LTRAIN_TRANSPORT=tcp");
  CHECK(neither.code == 64);
  CHECK(has(neither, "LTRAIN_TRANSPORT=\"tcp\": must be auto, shm (shared memory) or gloo (TCP)"));
}

TEST_CASE("a run that saves nothing can be stopped, and says that nothing was saved") {
  TempRun t;
  const Outcome o = t.sh(
      "run tiny.yaml train.train_steps=100000 train.eval_interval=0 checkpoint.save_interval=0 "
      "checkpoint.save_at_end=false train.exit_duration_in_mins=0.005");
  INFO(o.text);
  CHECK(o.code == 75);
  CHECK(has(o, "(train.exit_duration_in_mins); nothing was saved"));
  CHECK_FALSE(std::filesystem::exists(t.folder() + "/run/checkpoints/step-00000001"));
}

TEST_CASE("the space that is asked for at the start is that of the saves still to come") {
  if (::geteuid() != 0) {
    skip_test("the space that is asked for at the start: not root, cannot mount a tmpfs");
    return;
  }
  TempRun t;
  // A checkpoint takes 0.4 MiB and a reserve of 1 MiB: one fits, the three that rotation may hold at once do
  // not.
  if (t.shell("mkdir run && mount -t tmpfs -o size=3m tmpfs run").code != 0) {
    skip_test("the space that is asked for at the start: cannot mount a tmpfs");
    return;
  }
  const Outcome many = t.sh("run tiny.yaml train.train_steps=40");
  const Outcome once = t.sh("run tiny.yaml checkpoint.save_interval=0");
  t.shell("umount run");
  INFO(many.text << once.text);
  CHECK(many.code == 73);
  CHECK(has(many, "3 checkpoints of"));
  CHECK(once.code == 0);
}

TEST_CASE("generate --context-shift goes on beyond the positions, and stays a function of the seed") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  const auto tokens = [&](const std::string& options) {
    const Outcome o =
        t.shell(std::string(LTRAIN_BINARY) + " generate run --json --ignore-end --context-shift " + options +
                " 2>/dev/null");
    INFO(o.text);
    REQUIRE(o.code == 0);
    return nlohmann::json::parse(o.text).at("tokens").get<std::vector<int>>();
  };
  // 64 positions: 150 tokens more slide the context several times; a prompt longer than it works, too.
  const auto first = tokens("--prompt 'line ' --tokens 150");
  CHECK(first.size() == 150);
  for (int t : first) CHECK((t >= 0 && t < 257));
  CHECK(tokens("--prompt 'line ' --tokens 150") == first);
  CHECK(tokens("--prompt 'line ' --tokens 150 --seed 2") != first);
  CHECK(tokens("--prompt 'line ' --tokens 40") == std::vector<int>(first.begin(), first.begin() + 40));
  const std::string longer(100, 'x');
  CHECK(tokens("--prompt " + longer + " --tokens 5").size() == 5);
  // Only the last tokens count once the context is full.
  CHECK(tokens("--temperature 0 --prompt abcdefgh" + longer + " --tokens 5") ==
        tokens("--temperature 0 --prompt hgfedcba" + longer + " --tokens 5"));
  CHECK(tokens("--temperature 0 --prompt 'line ' --tokens 20") ==
        tokens("--top-k 1 --seed 5 --prompt 'line ' --tokens 20"));
}

TEST_CASE("a NaN never reaches a checkpoint, and ends the run with 76") {
  TempRun t;
  const std::string zero = GENERATE("1", "3");
  const Outcome o = t.sh("run tiny.yaml parallel.zero_stage=" + zero, "LTRAIN_FAULT=train.loss:0:3:nan");
  INFO(o.text);
  CHECK(o.code == 76);
  CHECK(has(o, "step 3"));
  CHECK(has(o, "not finite"));
  // Said once: rank 0 prints it, and the launcher names the rank that was first.
  CHECK(o.text.find("not finite") == o.text.rfind("not finite"));
  CHECK(o.text.find("go on from it with") == o.text.rfind("go on from it with"));
  CHECK(has(o, "ltrain: run failed: rank "));
  CHECK(has(o, "failed, in section step 3: its error is above\n"));
  CHECK(has(o, "lower optimizer.lr, or check the data around sample"));
  CHECK_FALSE(has(o, "precision"));  // fp32 already
  const auto list = nlohmann::json::parse(t.sh("checkpoint list run --json").text);
  for (const auto& c : list.at("checkpoints")) CHECK(c.at("step").get<int>() <= 2);
}

TEST_CASE("a checkpoint of another model, and a resume that cannot be met, are refused before a start") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml").code == 0);
  const Outcome other = t.sh("run tiny.yaml model.hidden_size=64 train.train_steps=8");
  INFO(other.text);
  CHECK(other.code != 0);
  CHECK(has(other, "hidden_size"));
  const Outcome missing = t.sh("run tiny.yaml checkpoint.resume=run/checkpoints/step-00000099");
  INFO(missing.text);
  CHECK(missing.code == 73);
  CHECK(has(missing, "step-00000099"));
}

TEST_CASE("a plan beyond the host's memory is refused with the itemised sum") {
  TempRun t;
  const Outcome o = t.sh("run tiny.yaml train.micro_batch_size=1000000 train.global_batch_size=2000000");
  INFO(o.text);
  CHECK(o.code == 78);
  CHECK(has(o, "exceeds this host's memory"));
  CHECK(has(o, "activations"));
}

TEST_CASE("log.format: json makes every line of stderr and of the ranks' logs an object, failures too") {
  TempRun t;
  REQUIRE(t.build().code == 0);
  const auto objects = [](const std::string& text, bool ranks) {
    std::vector<nlohmann::json> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      INFO(line);
      const auto j = nlohmann::json::parse(line, nullptr, false);
      REQUIRE(j.is_object());
      CHECK((j.contains("time") && j.contains("level") && j.contains("message")));
      if (ranks) CHECK(j.contains("rank"));
      all.push_back(j);
    }
    return all;
  };
  const Outcome o = t.sh("run tiny.yaml log.format=json train.train_steps=2 2>&1 >/dev/null");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const auto lines = objects(o.text, true);
  const auto step = std::find_if(lines.begin(), lines.end(), [](const nlohmann::json& j) {
    return j["message"].get<std::string>().starts_with("step 2/2  loss ");
  });
  REQUIRE(step != lines.end());
  CHECK(((*step)["step"] == 2 && (*step)["rank"] == 0 && (*step)["level"] == "info"));
  const auto logged = [&](int rank) {
    return read_file(t.folder() + "/run/logs/rank-0000" + std::to_string(rank) + ".log");
  };
  CHECK(logged(0) == o.text);

  // A rank that ends with an error: its own line, and the launcher's, which have no rank.
  const Outcome failed = t.sh("run tiny.yaml log.format=json train.train_steps=4 2>&1 >/dev/null",
                              "LTRAIN_FAULT=train.step:1:2:error");
  INFO(failed.text);
  CHECK(failed.code != 0);
  const auto verdict = objects(failed.text, false);
  CHECK(std::any_of(verdict.begin(), verdict.end(), [](const nlohmann::json& j) {
    return j["level"] == "error" && !j.contains("rank") &&
           j["message"].get<std::string>().starts_with("ltrain: run failed: rank 1 on host ");
  }));
  const auto own = objects(logged(1), true);
  CHECK(std::any_of(own.begin(), own.end(), [](const nlohmann::json& j) {
    return j["level"] == "error" && j["rank"] == 1 && j["step"] == 4;
  }));
}
