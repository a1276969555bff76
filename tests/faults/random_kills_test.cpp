// F14: ranks are killed from outside at random moments of a run that restarts itself.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

TEST_CASE(
    "random kills (F14): each restart goes on from the newest checkpoint, to the end of an unbroken run") {
  const std::string job =
      "run tiny.yaml train.train_steps=100 checkpoint.save_interval=4 train.eval_interval=6 ";
  const TempRun whole;
  REQUIRE(whole.sh(job).code == 0);
  const uint32_t seed = GENERATE(1u, 2u, 3u);
  std::mt19937 random(seed);
  const TempRun t;
  // After each kill a new checkpoint is waited for: two attempts in a row without progress end a run.
  std::string script = fmt::format(
      "LTRAIN_FAULT='train.step:*:*:sleep=20' {} {} launch.max_restarts=20 launch.restart_wait_seconds=0.1 "
      "2>err & p=$!\n"
      "newest() {{ ls -d run/checkpoints/step-*/ 2>/dev/null | grep -v tmp | tail -1; }}\n"
      "ranks() {{ set -- $(cat /proc/$p/task/*/children); [ $# = 2 ]; }}\n"
      "before=\n",
      program(), job);
  constexpr int kKills = 6;
  for (int kill = 0; kill < kKills; ++kill) {
    const double wait = static_cast<double>(random() % 150) / 1000;
    script += fmt::format(
        "until [ \"$(newest)\" != \"$before\" ] && ranks || ! kill -0 $p 2>/dev/null; do sleep 0.01; done\n"
        "sleep {:.3f}; set -- $(cat /proc/$p/task/*/children)\n"
        "if [ $# = 2 ]; then kill -KILL ${} && echo killed; fi\n"
        "while ranks; do sleep 0.01; done\n"
        "before=$(newest)\n",
        wait, 1 + random() % 2);
  }
  script += "wait $p; code=$?; cat err; exit $code\n";
  const Outcome o = t.shell_with_jobs(script);
  INFO("seed " << seed << "\n" << o.text);
  CHECK(o.code == 0);
  const auto count = [&](const std::string& word) {
    int n = 0;
    for (size_t at = o.text.find(word); at != std::string::npos; at = o.text.find(word, at + 1)) ++n;
    return n;
  };
  // On a busy machine a run may be at its end before the last kills.
  CHECK(count("killed\n") >= 3);
  CHECK(count("ltrain: restart ") >= 3);
  // The last value of each step, to the bit.
  const auto last = [](const TempRun& run, const std::string& key) {
    std::map<std::string, std::string> values;
    for (const std::string& row : run.metric(key))
      values[row.substr(0, row.find(':'))] = row.substr(row.find(':') + 1);
    return values;
  };
  for (const char* key : {"lm_loss", "grad_norm", "eval_loss", "consumed_tokens"})
    CHECK(last(t, key) == last(whole, key));
}
