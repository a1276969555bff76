#include "planner/search/refine.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "planner/search/smallest.h"
#include "planner/search/variants.h"
#include "runtime/machines/machine_profile.h"
#include "runtime/recipe/diagnostics.h"

namespace ltrain {
namespace {

// Fastest layouts with variants, and as many fast ones that do not fit.
constexpr size_t kVariantsOf = 10;
constexpr size_t kMoreOffload = 8;      // smallest layouts with more offload, if nothing fits
constexpr size_t kUnfit = 256;          // fast layouts that do not fit, considered for offload
constexpr size_t kBounded = 16;         // bounded at once
constexpr size_t kPaired = 4;           // layouts with schedules designed for pairs
constexpr size_t kChosenRecompute = 2;  // layouts with automatic recompute, which takes many plans

class Refinement {
 public:
  Refinement(Trials& trials, const std::vector<LayoutCandidate>& all, std::vector<LayoutCandidate>& fitting)
      : trials_(trials), all_(all), fitting_(fitting) {}

  int64_t run() {
    const double last = last_speed(fitting_, kVariantsOf);
    add_variants_of_fastest();
    std::vector<LayoutCandidate> pairs = pairs_beside_batch();
    const std::vector<LayoutCandidate> small =
        fitting_.empty() ? smallest(all_that_do_not_fit(), trials_.recipe()) : std::vector<LayoutCandidate>();
    add_offload(small, last);
    std::vector<LayoutCandidate> fit;
    size_t tried = batch_.size() + pairs.size();
    trials_.try_all(std::move(pairs), last, fit);
    trials_.try_all(std::move(batch_), 0, fit);
    if (fitting_.empty() && fit.empty()) tried += try_more_offload(small, fit);
    for (LayoutCandidate& c : fit)
      if (improves(c) && !chose_nothing_new(c)) fitting_.push_back(std::move(c));
    std::sort(fitting_.begin(), fitting_.end(), faster_by_trial);
    return static_cast<int64_t>(tried);
  }

 private:
  struct Derived {
    Layout layout;
    Trial parent;  ///< not finished: the origin does not fit
  };

  std::vector<Layout> variants(const Layout& l, VariantKind kind) const {
    return variants_of(l, kind, trials_.recipe(), trials_.limits());
  }

  bool in_batch(const Layout& l) const {
    return std::any_of(batch_.begin(), batch_.end(), [&](const LayoutCandidate& c) { return c.layout == l; });
  }

  /// Adds those to the batch that are new and may fit.
  void add(const std::vector<Derived>& derived) {
    std::vector<Layout> layouts;
    std::vector<Trial> parents;
    for (const Derived& d : derived) {
      if (d.layout.order != trials_.recipe().parallel.order && !order_matters(d.layout)) continue;
      if (in_batch(d.layout) || std::find(layouts.begin(), layouts.end(), d.layout) != layouts.end())
        continue;
      layouts.push_back(d.layout);
      parents.push_back(d.parent);
    }
    std::vector<LayoutCandidate> candidates = trials_.candidates_of(layouts);
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!trials_.may_fit(candidates[i])) continue;
      parents_[candidates[i].index] = parents[i];
      batch_.push_back(std::move(candidates[i]));
    }
  }

  void add_variants_of_fastest() {
    std::vector<Derived> derived;
    size_t chosen = 0;
    for (size_t i = 0; i < std::min(kVariantsOf, fitting_.size()); ++i) {
      const LayoutCandidate& c = fitting_[i];
      for (Layout& l : variants(c.layout, VariantKind::refined)) derived.push_back({std::move(l), c.trial});
      for (Layout& l : with_zero_layers(c)) derived.push_back({std::move(l), c.trial});
      if (chosen == kChosenRecompute || !plans_fast(c.layout)) continue;
      for (Layout& l : variants(c.layout, VariantKind::chosen_recompute)) {
        derived.push_back({std::move(l), c.trial});
        ++chosen;
      }
    }
    add(derived);
  }

  /// Gives ZeRO-3 layers of ZeRO-2 in the memory that it leaves, if ZeRO-2 for all layers does not fit.
  std::vector<Layout> with_zero_layers(const LayoutCandidate& c) const {
    Layout mixed = c.layout, two = c.layout;
    two.zero_stage = 2;
    const bool fits =
        std::any_of(fitting_.begin(), fitting_.end(), [&](const auto& f) { return f.layout == two; });
    const bool open = !trials_.recipe().origins->has("parallel.zero_layers");
    if (!open || fits || mixed.zero_stage < 3 || !mixed.reshard || mixed.offload_params) return {};
    mixed.zero_layers = trials_.zero_layers_of(c);
    return mixed.zero_layers > 0 ? std::vector<Layout>{mixed} : std::vector<Layout>{};
  }

  bool plans_fast(const Layout& l) const {
    return trials_.recipe().model.num_hidden_layers * micro_batches(l) <= kMostOpsToChoose;
  }

  std::vector<LayoutCandidate> pairs_beside_batch() {
    std::vector<Layout> layouts = fastest_with_pairs();
    std::erase_if(layouts, [&](const Layout& l) { return in_batch(l); });
    return trials_.candidates_of(layouts);
  }

  /// Fastest layouts that may fit and have schedules designed for pairs, with pairs. Their overlap is not
  /// part of any bound, so they may be faster than all layouts tried.
  std::vector<Layout> fastest_with_pairs() const {
    std::vector<Layout> out;
    const auto take = [&](const LayoutCandidate& c) {
      if (out.size() == kPaired) return;
      for (Layout& l : variants(c.layout, VariantKind::paired))
        if (std::find(out.begin(), out.end(), l) == out.end()) out.push_back(std::move(l));
    };
    for (const LayoutCandidate& c : fitting_) take(c);
    std::vector<const LayoutCandidate*> open;
    for (const LayoutCandidate& c : all_)
      if (trials_.may_fit(c) && c.layout.pipeline > 1 && has_pairs(c.layout) &&
          c.layout.overlap == OverlapChoice::off)
        open.push_back(&c);
    const size_t most = std::min(open.size(), 4 * kPaired);
    std::partial_sort(
        open.begin(), open.begin() + static_cast<std::ptrdiff_t>(most), open.end(),
        [](const LayoutCandidate* a, const LayoutCandidate* b) { return faster_by_bound(*a, *b); });
    for (size_t i = 0; i < most; ++i) take(*open[i]);
    return out;
  }

  std::vector<LayoutCandidate> all_that_do_not_fit() const {
    std::vector<LayoutCandidate> out = trials_.unfit();
    std::copy_if(all_.begin(), all_.end(), std::back_inserter(out),
                 [&](const LayoutCandidate& c) { return !trials_.may_fit(c); });
    return out;
  }

  /// Adds offload for `small` layouts, then for the fastest that do not fit. Offload makes no layout faster,
  /// so the bounds of layouts that do not fit also hold with it.
  void add_offload(const std::vector<LayoutCandidate>& small, double last) {
    std::vector<LayoutCandidate> unfit = all_that_do_not_fit();
    std::sort(unfit.begin(), unfit.end(), faster_by_bound);
    unfit.resize(std::min(unfit.size(), kUnfit));
    unfit.insert(unfit.begin(), small.begin(), small.end());
    const auto slow = std::find_if(unfit.begin(), unfit.end(),
                                   [&](const LayoutCandidate& c) { return c.bound_speed() < last; });
    unfit.erase(slow, unfit.end());
    const size_t most = batch_.size() + kVariantsOf + small.size();
    for (size_t i = 0; i < unfit.size() && batch_.size() < most; i += kBounded) {
      std::vector<Derived> derived;
      for (size_t j = i; j < std::min(i + kBounded, unfit.size()); ++j)
        for (Layout& l : variants(unfit[j].layout, VariantKind::offload))
          derived.push_back({std::move(l), {}});
      add(derived);
      batch_.resize(std::min(batch_.size(), most));
    }
  }

  /// Tries more offload for the smallest layouts, one after the other until one fits, if nothing fits with
  /// only the optimizer state in host memory. Returns the number of layouts tried.
  size_t try_more_offload(const std::vector<LayoutCandidate>& small, std::vector<LayoutCandidate>& fit) {
    size_t tried = 0;
    for (size_t i = 0; i < std::min(small.size(), kMoreOffload) && fit.empty(); ++i) {
      std::vector<LayoutCandidate> batch =
          trials_.candidates_of(variants(small[i].layout, VariantKind::more_offload));
      std::erase_if(batch, [&](const LayoutCandidate& c) { return !trials_.may_fit(c); });
      tried += batch.size();
      trials_.try_all(std::move(batch), 0, fit);
      if (!trials_.in_time()) break;
    }
    return tried;
  }

  /// Returns whether a variant is faster or smaller than its origin.
  bool improves(const LayoutCandidate& c) const {
    const auto at = parents_.find(c.index);
    if (at == parents_.end() || !at->second.finished) return true;
    const Trial& parent = at->second;
    return c.trial.bytes < parent.bytes || c.trial.step_seconds < (1 - 1e-9) * parent.step_seconds;
  }

  /// Returns whether `recompute: auto` chose the policy of a layout that is known already.
  bool chose_nothing_new(const LayoutCandidate& c) const {
    if (c.layout.recompute != RecomputeGranularity::automatic) return false;
    return std::any_of(fitting_.begin(), fitting_.end(), [&](const LayoutCandidate& other) {
      Layout chosen = other.layout;
      chosen.recompute = RecomputeGranularity::automatic;
      return chosen == c.layout && other.trial.bytes == c.trial.bytes &&
             std::abs(other.trial.step_seconds - c.trial.step_seconds) <= 1e-9 * c.trial.step_seconds;
    });
  }

  /// Returns whether the order of axes changes the distance between data-parallel and pipeline ranks. It does
  /// not if each tensor and context group fills domains of all levels of links.
  bool order_matters(const Layout& l) const {
    const SearchLimits& limits = trials_.limits();
    const std::vector<NetworkLevel> levels =
        ProfileCost::levels_of(trials_.profile().levels, limits.ranks_per_node, limits.world);
    const int64_t block = l.tensor * l.context;
    return block % limits.ranks_per_node != 0 ||
           std::any_of(levels.begin(), levels.end(),
                       [&](const NetworkLevel& n) { return n.ranks > 0 && block % n.ranks != 0; });
  }

  Trials& trials_;
  const std::vector<LayoutCandidate>& all_;
  std::vector<LayoutCandidate>& fitting_;
  std::vector<LayoutCandidate> batch_;  ///< variants to try
  std::map<size_t, Trial> parents_;     ///< trial of the origin of each variant, by its index
};

}  // namespace

int64_t refine(Trials& trials, const std::vector<LayoutCandidate>& all,
               std::vector<LayoutCandidate>& fitting) {
  return Refinement(trials, all, fitting).run();
}

}  // namespace ltrain
