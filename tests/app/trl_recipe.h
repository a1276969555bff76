// Recipe and figures of the comparisons with TRL (tests/golden/trl).
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/app/run_program.h"

namespace ltrain::test {

/// Folder of the tiny model, its data and TRL's losses.
inline std::string trl_folder() { return std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/trl"; }

/// Writes TASK.yaml, which trains on the file `data` of that folder.
inline void write_trl_recipe(const TempRun& t, const std::string& task, const std::string& data) {
  std::ofstream(t.folder() + "/" + task + ".yaml")
      << "task: " << task << "\nmodel: {from: " << trl_folder() << "}\ndata: {train: [{path: " << trl_folder()
      << "/" << data << R"(}], seq_length: 64, cache: cache, tokenizer: {kind: byte}}
train: {micro_batch_size: 8, global_batch_size: 8, train_steps: 20}
optimizer: {lr: 2.0e-3, weight_decay: 0, adam_beta2: 0.95}
schedule: {lr_decay_style: constant}
preference: {beta: 0.3}
checkpoint: {save_interval: 0, save_at_end: false}
launch: {threads_per_rank: 1}
)";
}

/// Compares a value of each step of run `name` with that of TRL, within bound * max(1, |TRL's|).
inline void check_trl_steps(const TempRun& t, const std::string& name, const nlohmann::json& steps,
                            const char* key, const char* of_trl, double bound) {
  const std::vector<double> got = t.values(key, name);
  REQUIRE(got.size() == steps.size());
  for (size_t i = 0; i < got.size(); ++i) {
    INFO(key << " of step " << i + 1);
    const double expected = steps[i][of_trl].get<double>();
    CHECK(std::abs(got[i] - expected) <= bound * std::max(1.0, std::abs(expected)));
  }
}

}  // namespace ltrain::test
