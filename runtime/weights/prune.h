// A smaller dense model from a trained one: `ltrain checkpoint prune`. Layers are dropped by number, and
// neurons of the feed-forwards by their weights.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/weights/export.h"

namespace ltrain {

struct PruneOptions {
  std::string checkpoint;         ///< a checkpoint, a folder of them, or a run's output_dir
  std::string made;               ///< the checkpoint to make
  std::vector<int64_t> layers;    ///< layers that stay, ascending; empty: all
  int64_t intermediate_size = 0;  ///< neurons of each feed-forward that stay; 0: all
  CopyProgress progress;
};

struct PruneReport {
  std::string checkpoint;
  int64_t step = 0;
  int64_t parameters_before = 0, parameters = 0;
  std::vector<int64_t> dropped_layers;
  /// Settings of the smaller model that differ from those of the run: "model.num_hidden_layers=2".
  std::vector<std::string> settings;
  int64_t states_left_out = 0;  ///< tensors of optimizer states, which the result does not have
  std::vector<std::string> notes;
};

/// Writes a checkpoint of step 0 with the weights alone. Weights that stay are the same bit for bit, and in
/// the same order. A neuron's importance is the product of the L2 norms of its rows of gate and up, biases
/// included, and of its column of down. It is 0 only if the neuron's output is 0 for every input. Of equals
/// the first stay. The result is a function of the checkpoint and the options. Throws Error (usage) for a
/// model with experts, adapters or modules of multi-token prediction.
PruneReport prune_checkpoint(const PruneOptions& options);

/// Numbers of layers from a list such as "0-3,6". Throws Error (usage) with `what` unless they ascend.
std::vector<int64_t> parse_layers(const std::string& text, const std::string& what);

}  // namespace ltrain
