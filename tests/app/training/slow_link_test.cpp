// A link so slow that a collective takes longer than the deadline: bytes that flow are progress.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "base/time_scale.h"
#include "tests/app/run_program.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Two ranks over sockets of a network namespace of their own, whose loopback carries `rate`.
Outcome run_over(const TempRun& t, const std::string& rate, double deadline_seconds) {
  std::ofstream(t.folder() + "/slow.sh") << fmt::format(
      "ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate {} burst 8kb latency 100s || exit 77\n"
      "LTRAIN_TRANSPORT=gloo {} run tiny.yaml train.train_steps=1 train.eval_interval=0 "
      "checkpoint.save_interval=0 "
      "checkpoint.save_at_end=false launch.distributed_timeout_minutes={}\n",
      rate, program(), deadline_seconds * time_scale() / 60);
  return t.shell("unshare -n sh slow.sh");
}

}  // namespace

TEST_CASE("a link of 1 Mbit/s on which bytes flow is no hang, one on which none do is") {
  TempRun t;
  const Outcome o = run_over(t, "1mbit", 1.2);
  INFO(o.text);
  if (o.code == 77 || o.text.find("unshare") != std::string::npos)
    skip_test("no network namespace with a rate limit here (unshare, ip, tc): " + o.text);
  CHECK(o.code == 0);
  const std::vector<std::string> times = t.metric("step_time_ms");
  REQUIRE(times.size() == 1);
  CHECK(std::stod(times[0].substr(times[0].find(':') + 1)) > 1.5 * 1200);  // longer than the deadline
  // At 4 kbit/s a packet of 1500 bytes takes three seconds, and no byte comes in between.
  const Outcome still = run_over(t, "4kbit", 1.2);
  INFO(still.text);
  CHECK(still.code == 71);
}
