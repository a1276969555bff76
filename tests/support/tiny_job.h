// A tiny training job on in-process ranks: threads, each with its streams, arena and communicator.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/train/train_program.h"

namespace ltrain::test {

struct TinyOptions {
  std::string architecture = "llama";
  std::string precision = "fp64";
  bool tied = false;
  double dropout = 0;
  int ranks = 1;
  int zero_stage = 0;
  int64_t micro_batch = 1, global_batch = 8, seq = 24, vocab = 61;
  int64_t steps = 3;
  int64_t bucket_elements = 3000;  ///< several buckets even for a tiny model
  bool padded_targets = false;     ///< some targets do not count
  double clip = 0.5;
};

struct TinyResult {
  std::vector<double> losses, norms;
  std::vector<double> parameters;  ///< all, by declaration order
  std::vector<double> gradients;   ///< of the first step, as rank 0 sees them after reduction (zero_stage 0)
  int64_t plan_bytes = 0, used_bytes = 0;  ///< arena of rank 0: planned; reached
  int64_t plan_wire = 0, used_wire = 0;    ///< bytes sent by rank 0
  double eval_loss = 0;
};

/// The model of the options.
ModelConfig tiny_model(const TinyOptions& options);
/// Row `sample` of the data: seq + 1 tokens, a function of the sample alone.
std::vector<int32_t> tiny_sample(const TinyOptions& options, int64_t sample);
/// The micro-batches of one step for one rank.
std::vector<HostBatch> tiny_batches(const TinyOptions& options, int64_t step, int rank);

/// Puts another communicator in the place of a rank's own, to break it on purpose.
using GroupWrapper = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)>;

/// Trains. `wrap` replaces the data group of each rank (negative controls); the plan is made with a whole
/// one.
TinyResult train_tiny(const TinyOptions& options, const GroupWrapper& wrap = {});

ProgramOptions tiny_program(const TinyOptions& options);
/// The optimizer's settings at `step`, from 1.
AdamwArgs tiny_adamw(int64_t step);

}  // namespace ltrain::test
