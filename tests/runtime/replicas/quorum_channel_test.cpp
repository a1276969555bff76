// The quorum over sockets: votes and values of ranks, and strangers.
#include "runtime/replicas/quorum_channel.h"

#include <sys/socket.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "base/error.h"
#include "base/time_scale.h"
#include "parallel/comm/socket.h"

using namespace ltrain;
using Catch::Contains;

namespace {

const std::string kToken = "token";
const auto kNever = [] { return false; };

QuorumSettings settings(int replicas) {
  return {.replicas = replicas,
          .least = 1,
          .timeout_seconds = 30 * time_scale(),
          .join_seconds = 30 * time_scale(),
          .log = {}};
}

QuorumAddress at(const QuorumServer& server, int replica, const std::string& token = kToken) {
  return {.host = "127.0.0.1", .port = server.port(), .token = token, .replica = replica};
}

Vote vote(const Membership& m, int64_t step) {
  return {.replica = 0, .epoch = m.epoch, .step = step, .complete = m.epoch > 0, .after = AfterStep::stays};
}

}  // namespace

TEST_CASE("quorum server: replicas vote and exchange values, and one that closes its connection is gone") {
  QuorumServer server(settings(2), 0, kToken);
  const std::string same = "seed: 1\n";
  auto other = std::make_unique<QuorumClient>(at(server, 1), 0, same, 10);
  QuorumClient mine(at(server, 0), 0, same, 10), second_rank(at(server, 0), 1, same, 10);
  auto theirs = std::async(std::launch::async, [&] { return other->vote(vote({}, 3), kNever); });
  const Membership both = mine.vote(vote({}, 7), kNever);
  CHECK(theirs.get().members == std::vector<int>{0, 1});
  CHECK(both.behind == std::vector<int>{1});
  CHECK(both.step == 7);

  for (QuorumClient* c : {&mine, &second_rank, other.get()}) c->begin_epoch(both.epoch);
  auto waits = std::async(std::launch::async, [&] { return second_rank.get("a", 10); });
  other->set("a", std::string("value\0with a zero", 17));
  CHECK(waits.get() == std::string("value\0with a zero", 17));
  CHECK_THROWS_WITH(second_rank.get("b", 0.05), Contains("no replica published \"b\""));

  other.reset();
  const Membership alone = mine.vote(vote(both, 7), kNever);
  CHECK(alone.counts);
  CHECK(alone.members == std::vector<int>{0});
  CHECK(alone.step == 8);
}

TEST_CASE("quorum server: a wait for the others ends when it is asked to stop") {
  QuorumServer server(settings(2), 0, kToken);
  QuorumClient mine(at(server, 0), 0, "", 10);
  std::atomic<bool> stop{false};
  auto waits =
      std::async(std::launch::async, [&] { return mine.vote(vote({}, 0), [&] { return stop.load(); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  stop = true;
  CHECK_THROWS_WITH(waits.get(), Contains("asked to stop while it waited for other replicas"));
}

TEST_CASE("quorum server: strangers, other recipes and unknown numbers are refused, and disturb nobody") {
  QuorumServer server(settings(1), 0, kToken);
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4096, '\xff'), std::string()}) {
    std::string why;
    const Connection c = connect_once("127.0.0.1", server.port(), after(5), &why);
    REQUIRE(c.fd.valid());
    const ssize_t sent = ::send(c.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    CHECK(sent == static_cast<ssize_t>(bytes.size()));
  }
  CHECK_THROWS_WITH(QuorumClient(at(server, 0, "another"), 0, "", 0.3),
                    Contains("something listens but belongs to another job"));
  QuorumClient mine(at(server, 0), 0, "seed: 1\n", 10);
  CHECK_THROWS_WITH(QuorumClient(at(server, 0), 1, "seed: 2\n", 10),
                    Contains("seed: 1 on replica 0, 2 on replica 0"));
  CHECK_THROWS_WITH(QuorumClient(at(server, 1), 0, "seed: 1\n", 10),
                    Contains("replica 1: the job has 1 replicas"));
  CHECK(mine.vote(vote({}, 5), kNever).step == 5);
}
