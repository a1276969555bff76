// The recipe of the comparisons with TRL (tests/golden/trl).
#pragma once
#include "tests/app/run_program.h"

namespace ltrain::test {

/// Folder of the tiny model, its data and TRL's losses.
inline std::string trl_folder() { return std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/trl"; }

/// Writes TASK.yaml, which trains on the file `data` of that folder.
inline void write_trl_recipe(const TempRun& t, const std::string& task, const std::string& data) {
  std::ofstream(t.folder() + "/" + task + ".yaml")
      << "task: " << task << "\nmodel: {from: " << trl_folder() << "}\ndata: {train: [{path: " << trl_folder()
      << "/" << data << R"(}], seq_length: 64, cache: cache, tokenizer: {kind: byte}}
train: {micro_batch_size: 8, global_batch_size: 8, train_steps: 10}
optimizer: {lr: 2.0e-3, weight_decay: 0, adam_beta2: 0.95}
schedule: {lr_decay_style: constant}
preference: {beta: 0.3}
checkpoint: {save_interval: 0, save_at_end: false}
launch: {threads_per_rank: 1}
)";
}

}  // namespace ltrain::test
