// A quorum and a launcher for each replica of a job, on one machine.
#pragma once
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/app/run_program.h"

namespace ltrain::test {

/// A quorum and a launcher for each replica, on one machine.
struct ReplicaLaunchers {
  /// `job`: recipe and overrides.
  ReplicaLaunchers(int replicas, std::string recipe) : count(replicas), job(std::move(recipe)) {}
  TempRun t;
  const int count;
  const std::string job;

  std::string quorum(const std::string& arguments) const {
    return fmt::format(
        "export LTRAIN_QUORUM_TOKEN=secret\n{} quorum {} replicas.count={} {} --port 0 > quorum 2>&1 & q=$!\n"
        "for i in $(seq 200); do grep -q 'at port' quorum && break; sleep 0.05; done\n"
        "export LTRAIN_QUORUM=127.0.0.1:$(sed -n 's/.*at port \\([0-9]*\\);.*/\\1/p' quorum)\n",
        program(), job, count, arguments);
  }
  std::string start(int replica, const std::string& arguments, const std::string& variables = "") const {
    return fmt::format(
        "{} LTRAIN_REPLICA={} {} run {} replicas.count={} {} output_dir=run-{} > replica-{} 2>&1 & "
        "p{}=$!\n",
        variables, replica, program(), job, count, arguments, replica, replica, replica);
  }
  /// Exit codes of the launchers, "CODE CODE".
  std::string codes(std::string script) const {
    script += "c=\n";
    for (int r = 0; r < count; ++r) script += fmt::format("wait $p{}; c=\"$c $?\"\n", r);
    const Outcome o = t.shell_with_jobs(script + "kill $q; echo codes:$c\n");
    const size_t at = o.text.find("codes: ");
    return at == std::string::npos ? o.text : o.text.substr(at + 7, o.text.find('\n', at) - at - 7);
  }
  std::string text(const std::string& file) const { return read_file(t.folder() + "/" + file); }
  std::string texts() const {
    std::string all = text("quorum");
    for (int r = 0; r < count; ++r)
      all += fmt::format("---- replica {}\n", r) + text(fmt::format("replica-{}", r));
    return all;
  }
};

/// Compares values by step (TempRun::metric).
inline void check_close(const std::vector<std::string>& got, const std::vector<std::string>& expected,
                        double tolerance = 1e-12) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t a = got[i].find(':'), b = expected[i].find(':');
    CHECK(got[i].substr(0, a) == expected[i].substr(0, b));
    CHECK(std::stod(got[i].substr(a + 1)) == Approx(std::stod(expected[i].substr(b + 1))).epsilon(tolerance));
  }
}

}  // namespace ltrain::test
