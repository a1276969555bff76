// Losses of runs that distil, compared with each other.
#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tests/app/run_program.h"

namespace ltrain::test {

/// Folder of a tiny teacher, its data and losses of other programs.
inline const std::string kDistillationFiles = LTRAIN_SOURCE_DIR "/tests/golden/distillation";

/// Runs `command` as `name`: its losses, divergences and norms are those of the run `like` to 1e-12.
inline void check_distilled_losses(const TempRun& t, const std::string& command, const std::string& name,
                                   const std::string& like) {
  const Outcome o = t.sh(command + " output_dir=" + name);
  INFO(command << "\n" << o.text);
  REQUIRE(o.code == 0);
  for (const char* key : {"lm_loss", "ce_loss", "kl", "grad_norm"}) {
    const std::vector<double> got = t.values(key, name), want = t.values(key, like);
    REQUIRE((got.size() == want.size() && !want.empty()));
    for (size_t i = 0; i < got.size(); ++i) {
      INFO(key << " of step " << i + 1 << ": " << got[i] << " and " << want[i]);
      CHECK(std::abs(got[i] - want[i]) <= 1e-12 * std::abs(want[i]));
    }
  }
}

}  // namespace ltrain::test
