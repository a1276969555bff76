// A smaller dense model from a trained one: `ltrain checkpoint prune`. Layers are dropped by number or by
// activations, and neurons of the feed-forwards by their weights or by activations.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/weights/export.h"

namespace ltrain {

/// Importance by activations on sequences, as Minitron measures it (arXiv:2407.14679).
struct Importance {
  /// 1 - the mean over tokens of the cosine of a layer's input and output in the residual stream (block
  /// importance, arXiv:2403.03853).
  std::vector<double> layers;
  /// L2 norm, by layer and neuron, over samples of the mean over a sample's tokens of |output of the
  /// activation function|.
  std::vector<std::vector<double>> neurons;
};

struct PruneOptions {
  std::string checkpoint;         ///< a checkpoint, a folder of them, or a run's output_dir
  std::string made;               ///< the checkpoint to make
  std::vector<int64_t> layers;    ///< layers that stay, ascending; empty: all
  int64_t intermediate_size = 0;  ///< neurons of each feed-forward that stay; 0: all
  int64_t layers_keep = 0;        ///< number of layers that stay, in the place of `layers`; needs `measure`
  /// Measures the importance in a checkpoint, once the options are known to be good; null: that of neurons is
  /// of their weights.
  std::function<Importance(const std::string& checkpoint)> measure;
  CopyProgress progress;
};

struct PruneReport {
  std::string checkpoint;
  int64_t step = 0;
  int64_t parameters_before = 0, parameters = 0;
  std::vector<int64_t> dropped_layers;
  std::optional<Importance> importance;            ///< from PruneOptions::measure
  std::vector<std::vector<int64_t>> kept_neurons;  ///< neurons of each layer that stays; empty: all
  /// Settings of the smaller model that differ from those of the run: "model.num_hidden_layers=2".
  std::vector<std::string> settings;
  int64_t states_left_out = 0;  ///< tensors of optimizer states, which the result does not have
  std::vector<std::string> notes;
};

/// Writes a checkpoint of step 0 with the weights alone. Weights that stay are the same bit for bit, and in
/// the same order. Without PruneOptions::measure a neuron's importance is the product of the L2 norms of
/// its rows of gate and up, biases included, and of its column of down. It is 0 only if the neuron's output
/// is 0 for every input. Of equals the first stay. The result is a function of the checkpoint and the
/// options. Throws Error (usage) for a model with experts, adapters or modules of multi-token prediction.
PruneReport prune_checkpoint(const PruneOptions& options);

/// Numbers of layers from a list such as "0-3,6". Throws Error (usage) with `what` unless they ascend.
std::vector<int64_t> parse_layers(const std::string& text, const std::string& what);

}  // namespace ltrain
