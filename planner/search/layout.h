// A parallel layout as a search handles it, its settings in a recipe, and the limits of a search.
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
  bool reshard = true;      ///< ZeRO-3: reshard after forward
  int64_t zero_layers = 0;  ///< ZeRO-3: layers of a pipeline stage under ZeRO-2
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
/// True if the recipe says that tensors are offloaded, and does not leave it to the plan.
bool offloads(const OffloadPlace& place);
/// "tensor 8 with sequence parallelism, pipeline 16 (interleaved, 2 chunks), data 128, ZeRO 1, micro-batch 1,
/// full recompute".
std::string layout_text(const Layout& layout, const Recipe& recipe);
/// Applies the layout to an unresolved recipe.
void set_layout(Recipe& recipe, const Layout& layout);

}  // namespace ltrain
