// Another number of experts for a trained model: `ltrain checkpoint experts`. Experts are left out, merged
// with similar ones, or copied.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "runtime/weights/export.h"

namespace ltrain {

/// prune: the experts of most use stay: those with the most choices, or by REAP's criterion
/// (arXiv:2510.13999). merge: others are merged into the most used one with the most similar router row,
/// weighted by use, with its neurons in the order of those that they resemble (MC-SMoE, arXiv:2310.01334).
/// add: every expert is there several times, and a token chooses as many copies.
enum class ExpertEdit : uint8_t { prune, merge, add };
LT_ENUM_NAMES(ExpertEdit, {ExpertEdit::prune, "prune"}, {ExpertEdit::merge, "merge"},
              {ExpertEdit::add, "add"});

/// Choices of each expert, or its saliency, indexed by layer of the model.
using ExpertUse = std::map<int64_t, std::vector<double>>;

struct EditExpertsOptions {
  std::string checkpoint;  ///< a checkpoint, a folder of them, or a run's output_dir
  std::string made;        ///< the checkpoint to make
  ExpertEdit edit = ExpertEdit::prune;
  int64_t experts = 0;  ///< prune, merge: experts of each layer that stay
  ExpertUse use;        ///< prune, merge: of every layer that has experts
  /// prune: measures the use in a checkpoint, once the options are known to be good, in the place of `use`.
  std::function<ExpertUse(const std::string& checkpoint)> measure;
  int64_t copies = 2;  ///< add: copies of each expert, itself included
  double reinit = 0;   ///< add: share of the neurons of each copy but the first that are drawn anew
  uint64_t seed = 0;   ///< chooses these neurons and their weights
  CopyProgress progress;
};

struct EditExpertsReport {
  std::string checkpoint;
  int64_t step = 0;
  int64_t parameters_before = 0, parameters = 0;
  /// For each expert of the result, by layer, the experts of the checkpoint that it is made of. The first one
  /// gives the router's row.
  std::map<int64_t, std::vector<std::vector<int64_t>>> origins;
  double kept_use = 1;  ///< share of the use of experts that stay themselves
  std::vector<std::string>
      settings;                 ///< settings that differ from those of the run: "model.moe.num_experts=4"
  int64_t states_left_out = 0;  ///< tensors of optimizer states, which the result does not have
  std::vector<std::string> notes;
};

/// Writes a checkpoint of step 0 with the weights alone. Experts keep their order; of equals the first stay.
/// A merged expert is the mean of its origins, weighted by their choices, or a plain mean if none was chosen;
/// the neurons of each origin are paired with those of the first for the largest sum of products of their
/// weights.
/// Copies of an expert follow it: with top_k times the copies, the model's function is the same but for
/// rounding. With `reinit` it is not: the rows of gate and up and the columns of down of the chosen neurons
/// are normal numbers with the mean and deviation of what they were (Drop-Upcycling, arXiv:2502.19261).
/// Throws Error (usage) for a dense model, adapters, multi-token prediction, and groups of experts.
EditExpertsReport edit_experts(const EditExpertsOptions& options);

}  // namespace ltrain
