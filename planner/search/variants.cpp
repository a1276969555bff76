#include "planner/search/variants.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "planner/search/enumerate.h"
#include "runtime/recipe/derived.h"
#include "runtime/recipe/rules/fp8_rules.h"
#include "runtime/recipe/rules/rules.h"

namespace ltrain {
namespace {

constexpr std::array kRowBudgets{1.5, 1.25};  // budgets for expert token rows that do not fit

bool is_open(const Recipe& r, const char* key) { return !r.origins->has(key); }

/// True if the recipe leaves open where tensors go.
bool is_open(const Recipe& r, const char* key, const OffloadPlace& place) {
  return is_open(r, key) || place.device == OffloadDevice::automatic;
}

bool may_offload_optimizer(const Layout& l, const Recipe& r) {
  return r.device == DeviceChoice::cuda && !l.offload_optimizer &&
         is_open(r, "offload.optimizer.device", r.offload.optimizer);
}
bool may_offload_activations(const Layout& l, const Recipe& r) {
  return r.device == DeviceChoice::cuda && !l.offload_activations &&
         is_open(r, "offload.activations.device", r.offload.activations);
}
bool may_offload_params(const Layout& l, const Recipe& r) {
  return r.device == DeviceChoice::cuda && !l.offload_params && l.zero_stage == 3 &&
         is_open(r, "offload.params.device", r.offload.params);
}
void offload_optimizer(Layout& l, const Recipe& r) {
  if (may_offload_optimizer(l, r)) l.offload_optimizer = true;
}

bool may_split_tensors(const Layout& l, const Recipe& r, const SearchLimits&) {
  return l.tensor > 1 && l.tensor_mode == TensorModeChoice::one_d && is_open(r, "parallel.tensor_mode");
}
template <TensorModeChoice mode, int64_t depth>
void split_tensors(Layout& l, const Recipe& r) {
  l.tensor_mode = mode, l.tensor_depth = depth;
  if (is_open(r, "parallel.sequence_parallel")) l.sequence_parallel = false;
}

bool may_choose_recompute(const Layout& l, const Recipe& r) {
  return l.recompute != RecomputeGranularity::none && is_open(r, "recompute.granularity");
}

/// The other choice of overlapped micro-batches than that of `auto`; nullopt if the setting is not open.
std::optional<OverlapChoice> other_overlap(const Layout& l, const Recipe& recipe) {
  if (l.global_batch == l.micro_batch * l.data || !is_open(recipe, "parallel.overlap_micro_batches"))
    return {};
  Recipe r = recipe;
  set_layout(r, l);
  if (recipe::overlaps_micro_batches(r)) return OverlapChoice::off;
  r.parallel.overlap_micro_batches = OverlapChoice::automatic;
  return recipe::overlaps_micro_batches(r) ? OverlapChoice::automatic : OverlapChoice::on;
}
void change_overlap(Layout& l, const Recipe& r) { l.overlap = other_overlap(l, r).value(); }

/// A way to derive a layout: `change` applies to a copy of each layout for which `applies` holds.
struct Variant {
  VariantKind kind;
  bool (*applies)(const Layout&, const Recipe&, const SearchLimits&);
  void (*change)(Layout&, const Recipe&);
};

const Variant kVariants[] = {
    // The order of ranks. On one node, or with one stage, both orders are equivalent.
    {VariantKind::refined,
     [](const Layout& l, const Recipe& r, const SearchLimits& limits) {
       return l.pipeline > 1 && limits.world > limits.ranks_per_node && is_open(r, "parallel.order");
     },
     [](Layout& l, const Recipe&) { l.order = l.order == "tp-cp-pp-dp" ? "tp-cp-dp-pp" : "tp-cp-pp-dp"; }},
    {VariantKind::refined, may_split_tensors, split_tensors<TensorModeChoice::two_d, 1>},
    {VariantKind::refined, may_split_tensors, split_tensors<TensorModeChoice::two_and_half_d, 2>},
    {VariantKind::refined, may_split_tensors, split_tensors<TensorModeChoice::three_d, 1>},
    // No recompute, with the optimizer state in host memory.
    {VariantKind::refined,
     [](const Layout& l, const Recipe& r, const SearchLimits&) {
       return may_choose_recompute(l, r) && may_offload_optimizer(l, r);
     },
     [](Layout& l, const Recipe&) { l.offload_optimizer = true, l.recompute = RecomputeGranularity::none; }},
    {VariantKind::refined,
     [](const Layout& l, const Recipe& r, const SearchLimits&) { return other_overlap(l, r).has_value(); },
     change_overlap},
    // Weights that stay gathered for a step.
    {VariantKind::refined,
     [](const Layout& l, const Recipe& r, const SearchLimits&) {
       const bool could_be_two = is_open(r, "parallel.zero_stage");
       return l.zero_stage == 3 && l.reshard && !could_be_two && is_open(r, "parallel.reshard_after_forward");
     },
     [](Layout& l, const Recipe&) { l.reshard = false; }},
    {VariantKind::refined,
     [](const Layout& l, const Recipe& r, const SearchLimits& limits) {
       return limits.allow_fp8 && l.precision == Precision::bf16 && is_open(r, "precision");
     },
     [](Layout& l, const Recipe&) { l.precision = Precision::fp8; }},

    {VariantKind::chosen_recompute,
     [](const Layout& l, const Recipe& r, const SearchLimits&) { return may_choose_recompute(l, r); },
     [](Layout& l, const Recipe&) { l.recompute = RecomputeGranularity::automatic; }},

    {VariantKind::paired,
     [](const Layout& l, const Recipe& r, const SearchLimits&) {
       return l.pipeline > 1 && has_pairs(l) &&
              other_overlap(l, r).value_or(OverlapChoice::off) != OverlapChoice::off;
     },
     change_overlap},

    {VariantKind::row_budget,
     [](const Layout& l, const Recipe& r, const SearchLimits&) {
       return r.model.moe.num_experts > 0 && l.expert > 1 && is_open(r, "model.moe.row_budget") &&
              (l.row_budget == 0 || l.row_budget > kRowBudgets.back());
     },
     [](Layout& l, const Recipe&) {
       l.row_budget = *std::find_if(kRowBudgets.begin(), kRowBudgets.end(),
                                    [&](double b) { return l.row_budget == 0 || b < l.row_budget; });
     }},

    {VariantKind::offload,
     [](const Layout& l, const Recipe& r, const SearchLimits&) { return may_offload_optimizer(l, r); },
     offload_optimizer},

    {VariantKind::more_offload,
     [](const Layout& l, const Recipe& r, const SearchLimits&) { return may_offload_activations(l, r); },
     [](Layout& l, const Recipe& r) { offload_optimizer(l, r), l.offload_activations = true; }},
    {VariantKind::more_offload,
     [](const Layout& l, const Recipe& r, const SearchLimits&) { return may_offload_params(l, r); },
     [](Layout& l, const Recipe& r) { offload_optimizer(l, r), l.offload_params = true; }},
    {VariantKind::more_offload,
     [](const Layout& l, const Recipe& r, const SearchLimits&) {
       return may_offload_activations(l, r) && may_offload_params(l, r);
     },
     [](Layout& l, const Recipe& r) {
       offload_optimizer(l, r), l.offload_activations = l.offload_params = true;
     }},
};

/// Returns whether an allowed recipe also satisfies the size rules of FP8 matmuls on a card.
bool multiplies_fp8(Recipe r, const SearchLimits& limits) {
  try {
    check_fp8(resolve(std::move(r), limits.world, limits.ranks_per_node));
    return true;
  } catch (const Error& e) {
    if (e.code() != ExitCode::usage) throw;
    return false;
  }
}

bool is_allowed(const Layout& l, Recipe r, const SearchLimits& limits) {
  set_layout(r, l);
  return rules_allow(r, limits) && (l.precision != Precision::fp8 || multiplies_fp8(std::move(r), limits));
}

}  // namespace

std::vector<Layout> variants_of(const Layout& layout, VariantKind kind, const Recipe& recipe,
                                const SearchLimits& limits) {
  std::vector<Layout> out;
  for (const Variant& v : kVariants) {
    if (v.kind != kind || !v.applies(layout, recipe, limits)) continue;
    Layout changed = layout;
    v.change(changed, recipe);
    if (is_allowed(changed, recipe, limits)) out.push_back(std::move(changed));
  }
  return out;
}

}  // namespace ltrain
