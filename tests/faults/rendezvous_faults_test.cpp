// Ranks that somebody else starts (torchrun variables, Slurm): rank 0 hosts the coordinator. Strangers on its
// port, wrong tokens, missing ranks, rank 0's death.
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <memory>

#include "parallel/comm/socket.h"
#include "runtime/launch/job_key.h"
#include "runtime/launch/message.h"
#include "tests/faults/run_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

Pairs torch_variables(int rank, int world, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
}

using Ranks = std::vector<std::unique_ptr<Program>>;
Ranks start(int world, int port, int steps, Pairs more = {}, int leave_out = -1) {
  Ranks ranks;
  for (int r = 0; r < world; ++r) {
    if (r == leave_out) continue;
    Pairs v = torch_variables(r, world, port);
    v.insert(v.end(), more.begin(), more.end());
    ranks.push_back(
        std::make_unique<Program>(std::vector<std::string>{"selftest", "allreduce", "--steps",
                                                           std::to_string(steps), "--step-seconds", "0.005"},
                                  v));
  }
  return ranks;
}

}  // namespace

TEST_CASE("ranks of another launcher find each other") {
  Ranks ranks = start(3, free_port(), 5);
  for (auto& p : ranks) {
    const RunResult r = p->wait();
    INFO(r.error);
    CHECK(r.code == 0);
  }
}

TEST_CASE("a busy port: the ranks meet on another one") {
  int port = 0;
  std::string error;
  const Fd squatter = listen_on("", {0}, &port, &error);  // accepts nobody's handshake
  Ranks ranks = start(2, port, 5, {{"LTRAIN_JOIN_TIMEOUT", scaled(20)}});
  for (auto& p : ranks) {
    const RunResult r = p->wait();
    INFO(r.error);
    CHECK(r.code == 0);
  }
}

TEST_CASE("rank 0 or another one dies: all end, and say who") {
  for (int victim : {0, 1}) {
    Ranks ranks = start(3, free_port(), 2000,
                        {{"LTRAIN_FAULT", "selftest.step:" + std::to_string(victim) + ":50:kill"}});
    for (int r = 0; r < 3; ++r) {
      const RunResult result = ranks[r]->wait();
      INFO("victim " << victim << ", rank " << r << ": " << result.error);
      CHECK(result.seconds < 15 * time_scale());
      if (r == victim) {
        CHECK(result.code == 1009);
        continue;
      }
      CHECK(result.code == 71);
      CHECK_THAT(result.error, Contains("rank " + std::to_string(victim)));
      if (r == 0) CHECK_THAT(result.error, Contains("run failed: rank 1 on host") && Contains("it died"));
    }
  }
}

TEST_CASE("rank 0 is stopped: the others notice by its silence") {
  Ranks ranks = start(3, free_port(), 20000, {{"LTRAIN_FAULT", "selftest.step:0:50:stop"}});
  for (int r : {1, 2}) {
    const RunResult result = ranks[r]->wait();
    INFO(result.error);
    CHECK(result.code == 71);
    CHECK(result.seconds < 20 * time_scale());
    CHECK_THAT(result.error, Contains("rank 0") && Contains("silent"));
  }
  ::kill(ranks[0]->pid(), SIGKILL);
}

TEST_CASE("a missing rank: the deadline says which, and where it was expected") {
  const int port = free_port();
  Ranks ranks = start(3, port, 5, {{"LTRAIN_JOIN_TIMEOUT", scaled(1)}}, 2);
  const RunResult zero = ranks[0]->wait(), one = ranks[1]->wait();
  INFO(zero.error << one.error);
  CHECK(zero.code == 71);
  CHECK(one.code == 71);
  CHECK_THAT(zero.error, Contains("rank 2 of 3 did not join") && Contains("port " + std::to_string(port)));
  CHECK_THAT(one.error, Contains("rank 2 of 3 did not join"));
}

TEST_CASE("no rank 0: the others list what they tried") {
  Pairs v = torch_variables(1, 2, free_port());
  v.emplace_back("LTRAIN_JOIN_TIMEOUT", scaled(1));
  v.emplace_back("LTRAIN_COORDINATOR", "localhost:1");
  Program p({"selftest", "allreduce"}, v);
  const RunResult r = p.wait();
  INFO(r.error);
  CHECK(r.code == 71);
  CHECK(r.seconds < 6 * time_scale());
  CHECK_THAT(r.error, Contains("127.0.0.1 port 1: Connection refused"));
  CHECK_THAT(r.error, Contains("loopback address here"));
}

TEST_CASE("a name that does not resolve is in the error") {
  Pairs v = torch_variables(1, 2, 29999);
  v.emplace_back("LTRAIN_JOIN_TIMEOUT", scaled(0.5));
  v.emplace_back("LTRAIN_COORDINATOR", "no-such-host.invalid:29999");
  Program p({"selftest", "allreduce"}, v);
  const RunResult r = p.wait();
  CHECK(r.code == 71);
  CHECK_THAT(r.error, Contains("no-such-host.invalid"));
}

TEST_CASE("garbage, silence and wrong tokens on the port do not disturb the run (F41, A9)") {
  const int port = free_port();
  Ranks ranks = start(2, port, 200, {}, 1);
  std::string error;
  REQUIRE(wait_until(5 * time_scale(),
                     [&] { return connect_once("127.0.0.1", port, after(1), &error).fd.valid(); }));
  std::vector<Fd> strangers;
  const auto send = [](const Fd& fd, const std::string& bytes) {
    ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  };
  const auto hear = [](const Fd& fd, size_t count) {  // output of 5 s
    std::string bytes;
    pollfd p{fd.get(), POLLIN, 0};
    while (bytes.size() < count && ::poll(&p, 1, 5000) > 0) {
      char buffer[256];
      const ssize_t n = ::recv(fd.get(), buffer, std::min(sizeof(buffer), count - bytes.size()), 0);
      if (n <= 0) break;
      bytes.append(buffer, static_cast<size_t>(n));
    }
    return bytes;
  };
  auto say = [&](const std::string& bytes) {
    Connection c = connect_once("127.0.0.1", port, after(1), &error);
    REQUIRE(c.fd.valid());
    send(c.fd, bytes);
    strangers.push_back(std::move(c.fd));
  };
  say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  say(std::string(100000, '\xff'));
  say(JobKey::greeting(kClientMagic));
  say(std::string(kClientMagic));  // and then nothing
  say("");
  // The right magic and a hello, but no proof: not one byte of it is believed.
  say(JobKey::greeting(kClientMagic) + std::string(kProofBytes, 'x') +
      MessageWriter(MessageType::hello).number(1).number(2).text("evil").number(1).frame());
  // Proofs of another token, and what a coordinator would show: its own words turned around.
  for (const bool turned : {false, true}) {
    const std::string mine = JobKey::greeting(kClientMagic);
    say(mine);
    const std::string theirs = hear(strangers.back(), kGreetingBytes);
    REQUIRE(theirs.starts_with(kServerMagic));
    const std::string proofs = JobKey("another job", "").proofs(mine, theirs);
    send(strangers.back(), turned ? theirs + mine + proofs : proofs);
    CHECK(hear(strangers.back(), 1).empty());  // closed
  }
  Program other({"selftest", "allreduce", "--steps", "200", "--step-seconds", "0.005"},
                torch_variables(1, 2, port));
  const RunResult one = other.wait(), zero = ranks[0]->wait();
  INFO(zero.error);
  CHECK(one.code == 0);
  CHECK(zero.code == 0);
  CHECK_THAT(zero.error, Contains("dropped a connection from 127.0.0.1"));
  // Once an address, not once a connection.
  CHECK(zero.error.find("dropped") == zero.error.rfind("dropped"));
}

TEST_CASE("two jobs that name the same port do not mix") {
  const int port = free_port();
  Ranks a = start(2, port, 100, {{"LTRAIN_TOKEN", "a"}});
  Ranks b = start(2, port, 100, {{"LTRAIN_TOKEN", "b"}, {"LTRAIN_JOIN_TIMEOUT", scaled(20)}});
  int good = 0;
  for (auto* job : {&a, &b})
    for (auto& p : *job) good += p->wait().code == 0;
  CHECK(good == 4);
}

TEST_CASE("ranks that start far apart wait for each other") {
  const int port = free_port();
  // A tenth of the usual bounds: silence is 0.8 s, and rank 1 comes after 2.5 s.
  const Pairs quick{{"LTRAIN_TIME_SCALE", "0.1"}, {"LTRAIN_JOIN_TIMEOUT", scaled(60)}};
  Ranks ranks = start(2, port, 5, quick, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  Pairs v = torch_variables(1, 2, port);
  v.insert(v.end(), quick.begin(), quick.end());
  Program late({"selftest", "allreduce", "--steps", "5"}, v);
  const RunResult one = late.wait(), zero = ranks[0]->wait();
  INFO(zero.error << one.error);
  CHECK(zero.code == 0);
  CHECK(one.code == 0);
}

TEST_CASE("the same rank twice is refused, and the run goes on") {
  const int port = free_port();
  // Rank 1 stops itself in its 20th step: when the twin comes, it has joined.
  Ranks ranks = start(2, port, 100000, {{"LTRAIN_FAULT", "selftest.step:1:20:stop"}});
  REQUIRE(wait_until(10 * time_scale(), [&] { return stopped(ranks[1]->pid()); }));
  ::kill(ranks[1]->pid(), SIGCONT);
  Pairs v = torch_variables(1, 2, port);
  v.emplace_back("LTRAIN_JOIN_TIMEOUT", scaled(2));
  Program twin({"selftest", "allreduce"}, v);
  const RunResult r = twin.wait();
  CHECK(r.code == 71);
  CHECK_THAT(r.error, Contains("rank 1 joined twice"));
  ::kill(ranks[0]->pid(), SIGTERM);
  for (auto& p : ranks) CHECK(p->wait().code == 75);  // both were still there
}

TEST_CASE("two launchers as two nodes") {
  const int port = free_port();
  std::vector<std::unique_ptr<Program>> nodes;
  for (int n = 0; n < 2; ++n)
    nodes.push_back(
        std::make_unique<Program>(std::vector<std::string>{"selftest", "allreduce", "--steps", "50"},
                                  Pairs{{"PET_NNODES", "2"},
                                        {"PET_NODE_RANK", std::to_string(n)},
                                        {"PET_NPROC_PER_NODE", "2"},
                                        {"PET_MASTER_ADDR", "127.0.0.1"},
                                        {"PET_MASTER_PORT", std::to_string(port)}}));
  for (auto& p : nodes) {
    const RunResult r = p->wait();
    INFO(r.error);
    CHECK(r.code == 0);
    CHECK(marked_processes(p->mark()).empty());
  }
  CHECK(true);
}
