// Layouts that a search considers: those that a recipe leaves open and its rules allow.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Parallel layout of a model, and the micro-batch of a rank.
struct Layout {
  int64_t tensor = 1;
  bool sequence_parallel = false;
  int64_t pipeline = 1, virtual_pipeline = 1;
  std::string schedule = "1f1b";
  int64_t context = 1;
  ContextComm context_comm = ContextComm::p2p;
  int64_t expert = 1, expert_tensor = 1;
  int64_t data = 1;  ///< the ranks that the other axes leave
  int64_t zero_stage = 0;
  bool reshard = true;  ///< ZeRO-3: reshard after forward
  int64_t shard_group = kOneLevel;
  int64_t micro_batch = 1, global_batch = 1;
  RecomputeGranularity recompute = RecomputeGranularity::none;
  Precision precision = Precision::fp32;
  // Fields that equal the recipe's, except in variants.
  TensorModeChoice tensor_mode = TensorModeChoice::one_d;
  int64_t tensor_depth = 1;
  std::string order = "tp-cp-dp-pp";
  bool offload_optimizer = false, offload_activations = false, offload_params = false;
  OverlapChoice overlap = OverlapChoice::automatic;
  double row_budget = 0;  ///< row budget of experts in even shares; 0: none
  bool operator==(const Layout&) const = default;
};

/// Returns whether its schedule may have overlapped pairs of forward and backward.
bool has_pairs(const Layout& layout);
/// Returns whether micro-batches may overlap, which can hide the collectives of tensor, context and expert
/// ranks and of ZeRO.
bool may_hide_collectives(const Layout& layout);

/// Limits of a search.
struct SearchLimits {
  int world = 1, ranks_per_node = 1;
  int64_t keep_free = 0;   ///< bytes to leave free in each memory
  int64_t max_tensor = 0;  ///< 0: the ranks of a node
  /// Range of the global batch, in powers of two; 0: as in the recipe.
  int64_t batch_low = 0, batch_high = 0;
  double seconds = 60;     ///< time limit for trying the fastest layouts
  bool variants = true;    ///< also try variants of the fastest layouts
  bool allow_fp8 = false;  ///< may replace bf16 if the recipe sets no precision
  /// Share of the best speed within which layouts count as equally fast. Of these, smaller ones come first.
  double tie = 0;
  /// Called from time to time. `tried`: layouts tried. `open`: layouts that may be faster than those found.
  std::function<void(int64_t tried, int64_t open)> progress = {};
};

/// A setting of a recipe: key and value.
using Setting = std::pair<std::string, std::string>;

/// Settings that give `recipe` this layout, without those that it has already.
std::vector<Setting> settings_of(const Layout& layout, const Recipe& recipe);
/// "tensor 8 with sequence parallelism, pipeline 16 (interleaved, 2 chunks), data 128, ZeRO 1, micro-batch 1,
/// full recompute".
std::string layout_text(const Layout& layout, const Recipe& recipe);
/// Applies the layout to an unresolved recipe.
void set_layout(Recipe& recipe, const Layout& layout);

/// Calls `found` with each layout of an unresolved recipe that its rules allow on `world` ranks. Settings
/// given in the recipe are kept. Varies tensor (1d), pipeline with every schedule except gpipe and with two
/// or four interleaved chunks, context up to 16 ranks and its communication, expert and expert_tensor, ZeRO
/// and its shard group, micro-batches up to 16 sequences, recompute, and bf16 if no precision is given.
/// Returns the number of layouts considered, including refused ones.
int64_t for_each_layout(const Recipe& recipe, const SearchLimits& limits,
                        const std::function<void(const Layout&)>& found);

/// Variants of a layout that fits, if the recipe leaves them open and its rules allow them: pipeline stages
/// adjacent instead of data ranks; tensor in 2d, 2.5d and 3d; less recompute with the optimizer state in host
/// memory; overlapped micro-batches if `auto` does not overlap them, or the reverse; FP8 if the limits allow
/// it; and, if the recipe requests ZeRO-3, weights that stay gathered for a step (otherwise ZeRO-2 sends as
/// much and needs less memory).
std::vector<Layout> variants_of(const Layout& layout, const Recipe& recipe, const SearchLimits& limits);
/// The layout with the least recompute that fits, chosen per tensor (recompute.granularity: auto). Empty if
/// nothing is recomputed, or if the recipe sets the policy.
std::vector<Layout> with_chosen_recompute(const Layout& layout, const Recipe& recipe,
                                          const SearchLimits& limits);
/// The layout with overlapped pairs of forward and backward, if its schedule is designed for them and the
/// layout does not use them.
std::vector<Layout> with_pairs(const Layout& layout, const Recipe& recipe, const SearchLimits& limits);
/// Smaller variants of a layout that does not fit, with memory for fewer expert token rows:
/// model.moe.row_budget of 1.5, then of 1.25. Empty if there is nothing to limit, or if the recipe sets the
/// key.
std::vector<Layout> with_row_budget(const Layout& layout, const Recipe& recipe, const SearchLimits& limits);
/// A layout that does not fit with its optimizer state in host memory. Empty on CPUs, and if the recipe sets
/// the offload target.
std::vector<Layout> with_offload(const Layout& layout, const Recipe& recipe, const SearchLimits& limits);
/// The layout with more offload: activations, or with ZeRO-3 the weights, or both.
std::vector<Layout> with_more_offload(const Layout& layout, const Recipe& recipe, const SearchLimits& limits);

}  // namespace ltrain
