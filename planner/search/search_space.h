// The layouts that a search looks at: what a recipe leaves open, as far as its rules allow.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// How a model is spread, and what a rank computes at once.
struct Layout {
  int64_t tensor = 1;
  bool sequence_parallel = false;
  int64_t pipeline = 1, virtual_pipeline = 1;
  std::string schedule = "1f1b";
  int64_t context = 1;
  ContextComm context_comm = ContextComm::p2p;
  int64_t expert = 1, expert_tensor = 1;
  int64_t data = 1;  ///< the ranks that the others leave
  int64_t zero_stage = 0;
  bool reshard = true;  ///< of ZeRO-3, after forward
  int64_t shard_group = kOneLevel;
  int64_t micro_batch = 1, global_batch = 1;
  RecomputeGranularity recompute = RecomputeGranularity::none;
  Precision precision = Precision::fp32;
  // The recipe's, but in variants.
  TensorModeChoice tensor_mode = TensorModeChoice::one_d;
  int64_t tensor_depth = 1;
  std::string order = "tp-cp-dp-pp";
  bool offload_optimizer = false, offload_activations = false, offload_params = false;
  OverlapChoice overlap = OverlapChoice::automatic;
  double row_budget = 0;  ///< of experts, in even shares; 0: none
  bool operator==(const Layout&) const = default;
};

/// Whether its schedule may have a forward and a backward beside each other.
bool has_pairs(const Layout& layout);
/// Whether micro-batches may run by turns, which can hide the collectives of tensor, context and expert ranks
/// and of ZeRO.
bool may_hide_collectives(const Layout& layout);

/// What a search may use.
struct SearchLimits {
  int world = 1, ranks_per_node = 1;
  int64_t keep_free = 0;                  ///< bytes of each memory that a plan is compared with
  int64_t max_tensor = 0;                 ///< 0: the ranks of a node
  int64_t batch_low = 0, batch_high = 0;  ///< global batch, powers of two between; 0: the recipe's
  double seconds = 60;                    ///< after which no more of the fastest are tried
  bool variants = true;                   ///< of the fastest layouts are tried too
  bool allow_fp8 = false;                 ///< in the place of bf16 where the recipe says no precision
  /// Share of the fastest speed within which layouts count as equally fast: of these the smaller come first.
  double tie = 0;
  /// Told now and then: layouts that were tried, and those that may still be faster than what was found.
  std::function<void(int64_t tried, int64_t open)> progress = {};
};

/// A setting of a recipe: key and value.
using Setting = std::pair<std::string, std::string>;

/// Those of `recipe` with the layout, where the recipe does not have them already.
std::vector<Setting> settings_of(const Layout& layout, const Recipe& recipe);
/// "tensor 8 with sequence parallelism, pipeline 16 (interleaved, 2 chunks), data 128, ZeRO 1, micro-batch 1,
/// full recompute".
std::string layout_text(const Layout& layout, const Recipe& recipe);
/// Puts it into a recipe that is not resolved.
void set_layout(Recipe& recipe, const Layout& layout);

/// Calls `found` with each layout of the recipe, which is not resolved, that its rules allow on `world`
/// ranks. What the recipe was given stays. Looks at tensor (1d), pipeline with every schedule but gpipe and
/// two or four interleaved chunks, context of up to 16 ranks and its communication, expert and expert_tensor,
/// ZeRO and its group of shards, micro-batches of up to 16 sequences, recomputation, and bf16 in place of a
/// precision that was not given. Returns how many it looked at, those that a rule refuses among them.
int64_t for_each_layout(const Recipe& recipe, const SearchLimits& limits,
                        const std::function<void(const Layout&)>& found);

/// What else a layout that fits may be, as far as the recipe leaves it open and its rules allow: pipeline
/// stages next to each other in place of data ranks, tensor in 2d, 2.5d and 3d, less recomputation beside an
/// optimizer state in host memory, micro-batches by turns where `auto` has them apart or apart where it has
/// them by turns, FP8 where limits allow it, and where the recipe asks for ZeRO-3 weights that stay gathered
/// for a step (else ZeRO-2 sends as much and takes less).
std::vector<Layout> variants_of(const Layout& layout, const Recipe& recipe, const SearchLimits& limits);
/// What computes again as little as fits, tensor by tensor (recompute.granularity: auto). Empty where nothing
/// is computed again, or the recipe says what.
std::vector<Layout> with_chosen_recompute(const Layout& layout, const Recipe& recipe,
                                          const SearchLimits& limits);
/// The same with a forward and a backward beside each other, where its schedule is made for that and the
/// layout has them apart.
std::vector<Layout> with_pairs(const Layout& layout, const Recipe& recipe, const SearchLimits& limits);
/// A layout that does not fit with memory for fewer rows of experts: model.moe.row_budget of 1.5, then of
/// 1.25. Empty where there is nothing to bound, or the recipe has the key.
std::vector<Layout> with_row_budget(const Layout& layout, const Recipe& recipe, const SearchLimits& limits);
/// A layout that does not fit with its optimizer state in host memory. Empty on CPUs, and where the recipe
/// says where that is.
std::vector<Layout> with_offload(const Layout& layout, const Recipe& recipe, const SearchLimits& limits);
/// The same with more there: activations, or with ZeRO-3 the weights, or both.
std::vector<Layout> with_more_offload(const Layout& layout, const Recipe& recipe, const SearchLimits& limits);

}  // namespace ltrain
