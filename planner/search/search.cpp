#include "planner/search/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "runtime/launch/cgroup.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/on_all_cores.h"
#include "runtime/plan/rank_map.h"

namespace ltrain {
namespace {

constexpr size_t kBatch = 16;         // layouts tried before others are selected
constexpr size_t kPriced = 256;       // layouts priced at once
constexpr size_t kMostPriced = 2048;  // limit if fewer than kFresh keys are new
constexpr size_t kFresh = 16;
constexpr size_t kFrontTrials = 8;      // trials of the Pareto front of bounds
constexpr size_t kSmallestTrials = 24;  // trials of the smallest layouts, if nothing fits
// Fastest layouts with variants, and as many fast ones that do not fit.
constexpr size_t kVariantsOf = 10;
constexpr size_t kMoreOffload = 8;          // smallest layouts with more offload, if nothing fits
constexpr size_t kUnfit = 256;              // fast layouts that do not fit, considered for offload
constexpr size_t kPaired = 4;               // layouts with schedules designed for pairs
constexpr size_t kChosenRecompute = 2;      // layouts with automatic recompute, which takes many plans
constexpr int64_t kMostOpsToChoose = 4096;  // limit of layers times micro-batches for them
// Memory of each layout on the front, relative to the previous one.
constexpr double kFrontStep = 0.9;
constexpr int kMostWorld = 1 << 18;  // largest number of ranks searched for a fitting layout

struct Ranked {
  Layout layout;
  Bound bound;
  size_t index = 0;  ///< index in the order of the space
  int priced = 0;    ///< pipeline price in its bound: 0 none, 1 lower bound, 2 its actions
  Trial trial;
  double speed() const { return static_cast<double>(layout.global_batch) / bound.step_seconds; }
  double tried_speed() const { return static_cast<double>(layout.global_batch) / trial.step_seconds; }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Search {
 public:
  Search(const LoadRecipe& load, const MachineProfile& profile, const SearchLimits& limits)
      : load_(load),
        recipe_(load({})),
        profile_(profile),
        limits_(limits),
        parts_(recipe_, profile, limits_) {}

  SearchResult run(size_t count, int64_t most_trials) {
    SearchResult result;
    const std::vector<Ranked> all = bounds(result);
    result.bound_seconds = seconds_since(start_);
    std::vector<Ranked> open;
    const double most = memory();
    std::copy_if(all.begin(), all.end(), std::back_inserter(open),
                 [&](const Ranked& r) { return r.bound.bytes <= most; });
    result.may_fit = static_cast<int64_t>(open.size());
    std::vector<Ranked> fitting;
    try_fastest(open, count, most_trials, fitting);
    const double last = last_speed(fitting, count);
    const auto may_be_faster = [&](const Ranked& r) { return !(r.speed() < last); };
    const std::vector<Ranked> few = smaller(open);
    result.untried = std::count_if(open.begin(), open.end(), may_be_faster);
    const int64_t few_faster = std::count_if(few.begin(), few.end(), may_be_faster);
    result.slower =
        static_cast<int64_t>(open.size()) - result.untried - (static_cast<int64_t>(few.size()) - few_faster);
    result.untried -= few_faster;
    try_all(few, 0, fitting);
    sort(fitting);
    if (limits_.variants) result.variants = try_variants(all, fitting);
    for (const Ranked& r : fitting) result.tried.push_back({r.layout, r.trial.step_seconds, r.trial.bytes});
    // A layout in both lists is planned once.
    std::vector<Ranked> listed{
        fitting.begin(), fitting.begin() + static_cast<std::ptrdiff_t>(std::min(count, fitting.size()))};
    const size_t fastest = listed.size();
    const std::vector<Ranked> on_front = front(fitting);
    const auto is = [](const Ranked& a) { return [&a](const Ranked& b) { return a.index == b.index; }; };
    for (const Ranked& r : on_front)
      if (std::none_of(listed.begin(), listed.end(), is(r))) listed.push_back(r);
    std::vector<FoundLayout> plans = plans_of(listed);
    for (const Ranked& r : on_front)
      result.pareto.push_back(
          plans[static_cast<size_t>(std::find_if(listed.begin(), listed.end(), is(r)) - listed.begin())]);
    plans.resize(fastest);
    result.found = smaller_of_ties(std::move(plans));
    if (fitting.empty()) advise(all, result);
    result.composed = parts_.composed();
    result.whole = parts_.whole();
    result.wrong_bounds = wrong_bounds_;
    result.seconds = seconds_since(start_);
    return result;
  }

 private:
  /// Bounds of all layouts that the rules allow, in the order of the space.
  std::vector<Ranked> bounds(SearchResult& result) {
    std::vector<Ranked> out;
    result.looked_at = for_each_layout(recipe_, limits_, [&](const Layout& l) {
      out.push_back({l, {}, out.size(), parts_.has_actions(l) ? 0 : 2, {}});
    });
    on_all_cores_by_key(
        out.size(), [&](size_t i) { return SearchParts::key_of(out[i].layout); },
        [&](size_t i) { out[i].bound = parts_.bound(out[i].layout); });
    result.allowed = static_cast<int64_t>(out.size());
    next_index_ = out.size();
    const double most = memory();
    for (size_t from = 0; from < out.size();) {
      std::vector<Ranked> unfit;
      std::copy_if(out.begin() + static_cast<std::ptrdiff_t>(from), out.end(), std::back_inserter(unfit),
                   [&](const Ranked& r) { return r.bound.bytes > most; });
      from = out.size();
      for (Ranked& r : with_row_budgets(unfit)) out.push_back(std::move(r));
    }
    return out;
  }

  /// Retries layouts that do not fit with a smaller MoE row budget.
  std::vector<Ranked> with_row_budgets(const std::vector<Ranked>& unfit) {
    std::vector<Ranked> out;
    for (const Ranked& r : unfit)
      for (const Layout& l : with_row_budget(r.layout, recipe_, limits_))
        out.push_back({l, {}, next_index_++, parts_.has_actions(l) ? 0 : 2, {}});
    on_all_cores(out.size(), [&](size_t i) { out[i].bound = parts_.bound(out[i].layout); });
    return out;
  }

  /// Sorts the layouts about as fast as the first by their memory. `found`: fastest first.
  std::vector<FoundLayout> smaller_of_ties(std::vector<FoundLayout> found) const {
    if (found.empty()) return found;
    const double least = (1 - limits_.tie) * found.front().tokens_per_second_per_rank();
    const auto end = std::find_if(found.begin(), found.end(), [&](const FoundLayout& f) {
      return f.tokens_per_second_per_rank() < least;
    });
    if (limits_.tie > 0)
      std::stable_sort(found.begin(), end, [](const FoundLayout& a, const FoundLayout& b) {
        return a.largest().total_bytes < b.largest().total_bytes;
      });
    return found;
  }

  /// Speed that a layout must exceed; 0 until `count` layouts fit.
  static double last_speed(const std::vector<Ranked>& fitting, size_t count) {
    return fitting.size() < count ? 0 : fitting[count - 1].tried_speed();
  }

  /// Tries layouts of `open` that may be among the `count` fastest, and leaves the others.
  void try_fastest(std::vector<Ranked>& open, size_t count, int64_t most_trials,
                   std::vector<Ranked>& fitting) {
    const auto later = [](const Ranked& a, const Ranked& b) {
      return a.speed() != b.speed() ? a.speed() < b.speed() : a.index > b.index;
    };
    const double most = memory();
    std::make_heap(open.begin(), open.end(), later);
    const auto put_back = [&](Ranked r) {
      open.push_back(std::move(r));
      std::push_heap(open.begin(), open.end(), later);
    };
    for (int64_t trials = 0; trials < most_trials && seconds_since(start_) < limits_.seconds;) {
      const double last = last_speed(fitting, count);
      if (limits_.progress)
        limits_.progress(trials, std::count_if(open.begin(), open.end(),
                                               [&](const Ranked& r) { return !(r.speed() < last); }));
      std::vector<Ranked> batch;
      while (batch.size() < kBatch && !open.empty() && !(open.front().speed() < last)) {
        std::pop_heap(open.begin(), open.end(), later);
        batch.push_back(std::move(open.back()));
        open.pop_back();
      }
      if (batch.empty()) return;
      const auto known = [](const Ranked& r) { return r.priced == 2; };
      if (!std::all_of(batch.begin(), batch.end(), known)) {
        // Also price the next layouts. Prices only raise bounds, so the same layouts are tried first. Take
        // more of them if there are too few new keys for all cores.
        std::set<SearchParts::ActionsKey> fresh;
        const auto note = [&](const Ranked& r) {
          if (known(r)) return;
          if (SearchParts::ActionsKey key = price_key(r); !priced_.contains(key))
            fresh.insert(std::move(key));
        };
        std::for_each(batch.begin(), batch.end(), note);
        while ((batch.size() < kPriced || (batch.size() < kMostPriced && fresh.size() < kFresh)) &&
               !open.empty() && !(open.front().speed() < last)) {
          std::pop_heap(open.begin(), open.end(), later);
          batch.push_back(std::move(open.back()));
          open.pop_back();
          note(batch.back());
        }
        priced_.merge(fresh);
        price(batch);
        for (Ranked& r : batch)
          if (r.bound.bytes <= most) put_back(std::move(r));
        continue;
      }
      trials += static_cast<int64_t>(batch.size());
      const size_t tried = unfit_.size();
      try_all(std::move(batch), last, fitting);
      for (Ranked& r : with_row_budgets({unfit_.begin() + static_cast<std::ptrdiff_t>(tried), unfit_.end()}))
        if (r.bound.bytes <= most) put_back(std::move(r));
      sort(fitting);
    }
  }

  /// Computes the next pipeline price for each layout.
  void price(std::vector<Ranked>& batch) {
    std::vector<Ranked*> open;
    for (Ranked& r : batch)
      if (r.priced < 2) open.push_back(&r);
    on_all_cores_by_key(
        open.size(), [&](size_t i) { return price_key(*open[i]); },
        [&](size_t i) {
          Ranked& r = *open[i];
          const Bound b = r.priced > 0 ? parts_.actions(r.layout) : Bound{parts_.least_actions(r.layout), 0};
          r.bound = {std::max(r.bound.step_seconds, b.step_seconds), std::max(r.bound.bytes, b.bytes)};
          ++r.priced;
        });
  }

  /// Layouts with the same key share the work of the next price.
  static SearchParts::ActionsKey price_key(const Ranked& r) {
    return r.priced > 0 ? SearchParts::actions_key_of(r.layout)
                        : SearchParts::ActionsKey{SearchParts::key_of(r.layout), "", 0, 0, 0};
  }

  /// Tries layouts and adds the fitting ones to `fitting`, except those slower than `speed`. 0: no limit.
  void try_all(std::vector<Ranked> batch, double speed, std::vector<Ranked>& fitting) {
    std::vector<std::unique_ptr<RankTrials>> trials(batch.size());
    on_all_cores(batch.size(), [&](size_t i) {
      const Layout& l = batch[i].layout;
      trials[i] = parts_.begin_trial(l, static_cast<double>(l.global_batch) / speed);  // infinite for 0
    });
    // Rank by rank, so that no core waits for the last layout.
    std::vector<std::pair<RankTrials*, size_t>> ranks;
    for (const auto& trial : trials)
      for (size_t i = 0; trial && i < trial->size(); ++i) ranks.emplace_back(trial.get(), i);
    on_all_cores(ranks.size(), [&](size_t i) { ranks[i].first->run(ranks[i].second); });
    on_all_cores(batch.size(), [&](size_t i) {
      if (trials[i]) batch[i].trial = trials[i]->result();
    });
    for (Ranked& r : batch) {
      if (!r.trial.fits) unfit_.push_back(r);
      if (!r.trial.finished) continue;
      const bool below =
          r.trial.step_seconds < r.bound.step_seconds || static_cast<double>(r.trial.bytes) < r.bound.bytes;
      wrong_bounds_ += below ? 1 : 0;
      fitting.push_back(std::move(r));
    }
  }

  /// Tries variants of the fastest layouts that fit, and offload for layouts that would be as fast but do not
  /// fit. If nothing fits, tries offload for the smallest. Variants that are neither faster nor smaller than
  /// their origin are dropped. Returns the number of layouts tried.
  int64_t try_variants(const std::vector<Ranked>& all, std::vector<Ranked>& fitting) {
    std::vector<Ranked> batch;
    std::vector<Trial> of;  // trial of the origin of each variant; not finished: the origin does not fit
    const auto know = [&](const std::vector<Layout>& layouts) {  // computes the bounds that add() needs
      on_all_cores_by_key(
          layouts.size(), [&](size_t i) { return SearchParts::key_of(layouts[i]); },
          [&](size_t i) { parts_.bound(layouts[i]); });
    };
    const auto add = [&](const std::vector<Layout>& layouts, const Trial& trial) {
      for (const Layout& l : layouts) {
        if (l.order != recipe_.parallel.order && !order_matters(l)) continue;
        const auto same = [&](const Ranked& r) { return r.layout == l; };
        if (std::any_of(batch.begin(), batch.end(), same)) continue;
        Ranked r{l, parts_.bound(l), next_index_++, 2, {}};
        if (r.bound.bytes > memory()) continue;
        batch.push_back(std::move(r));
        of.push_back(trial);
      }
    };
    std::vector<Layout> variants;
    for (size_t i = 0; i < std::min(kVariantsOf, fitting.size()); ++i)
      for (Layout& l : variants_of(fitting[i].layout, recipe_, limits_)) variants.push_back(std::move(l));
    know(variants);
    for (size_t i = 0, chosen = 0; i < std::min(kVariantsOf, fitting.size()); ++i) {
      const Layout& l = fitting[i].layout;
      add(variants_of(l, recipe_, limits_), fitting[i].trial);
      const int64_t ops = recipe_.model.num_hidden_layers * (l.global_batch / (l.micro_batch * l.data));
      if (chosen == kChosenRecompute || ops > kMostOpsToChoose) continue;
      const std::vector<Layout> layouts = with_chosen_recompute(l, recipe_, limits_);
      chosen += layouts.size();
      add(layouts, fitting[i].trial);
    }
    const std::vector<Layout> paired = fastest_with_pairs(all, fitting);
    know(paired);
    std::vector<Ranked> pairs;
    for (const Layout& l : paired)
      if (std::none_of(batch.begin(), batch.end(), [&](const Ranked& r) { return r.layout == l; }))
        pairs.push_back({l, parts_.bound(l), next_index_++, 2, {}});
    // Offload makes no layout faster, so the bounds of layouts that do not fit also hold with it.
    std::vector<Ranked> unfit = unfit_;
    std::copy_if(all.begin(), all.end(), std::back_inserter(unfit),
                 [&](const Ranked& r) { return r.bound.bytes > memory(); });
    std::vector<Ranked> first = fitting.empty() ? smallest(unfit) : std::vector<Ranked>();
    std::sort(unfit.begin(), unfit.end(), [](const Ranked& a, const Ranked& b) {
      return a.speed() != b.speed() ? a.speed() > b.speed() : a.index < b.index;
    });
    const double last = last_speed(fitting, kVariantsOf);
    unfit.resize(std::min(unfit.size(), kUnfit));
    unfit.insert(unfit.begin(), first.begin(), first.end());
    const size_t most = batch.size() + kVariantsOf + first.size();
    constexpr size_t kKnown = 16;  // layouts whose bounds are computed at once
    for (size_t i = 0; i < unfit.size(); ++i) {
      if (batch.size() >= most || unfit[i].speed() < last) break;
      if (i % kKnown == 0) {
        std::vector<Layout> next;
        for (size_t j = i; j < std::min(i + kKnown, unfit.size()) && !(unfit[j].speed() < last); ++j)
          for (Layout& l : with_offload(unfit[j].layout, recipe_, limits_)) next.push_back(std::move(l));
        know(next);
      }
      add(with_offload(unfit[i].layout, recipe_, limits_), {});
    }
    std::vector<Ranked> fit;
    size_t tried = batch.size() + pairs.size();
    try_all(std::move(pairs), last, fit);
    std::map<size_t, Trial> parents;
    for (size_t i = 0; i < batch.size(); ++i) parents[batch[i].index] = of[i];
    try_all(std::move(batch), 0, fit);
    if (fitting.empty() && fit.empty()) tried += try_more_offload(first, fit);
    for (Ranked& r : fit) {
      const auto at = parents.find(r.index);
      const Trial parent = at == parents.end() ? Trial() : at->second;
      const bool better = !parent.finished || r.trial.bytes < parent.bytes ||
                          r.trial.step_seconds < (1 - 1e-9) * parent.step_seconds;
      if (better && !chose_nothing_new(r, fitting)) fitting.push_back(std::move(r));
    }
    sort(fitting);
    return static_cast<int64_t>(tried);
  }

  /// Returns whether `recompute: auto` chose the policy of a layout already in `fitting`.
  static bool chose_nothing_new(const Ranked& r, const std::vector<Ranked>& fitting) {
    if (r.layout.recompute != RecomputeGranularity::automatic) return false;
    return std::any_of(fitting.begin(), fitting.end(), [&](const Ranked& other) {
      Layout chosen = other.layout;
      chosen.recompute = RecomputeGranularity::automatic;
      return chosen == r.layout && other.trial.bytes == r.trial.bytes &&
             std::abs(other.trial.step_seconds - r.trial.step_seconds) <= 1e-9 * r.trial.step_seconds;
    });
  }

  /// Returns whether the order of axes changes the distance between data-parallel and pipeline ranks. It does
  /// not if each tensor and context group fills domains of all levels of links.
  bool order_matters(const Layout& l) const {
    const std::vector<NetworkLevel> levels =
        ProfileCost::levels_of(profile_.levels, limits_.ranks_per_node, limits_.world);
    const int64_t block = l.tensor * l.context;
    return block % limits_.ranks_per_node != 0 ||
           std::any_of(levels.begin(), levels.end(),
                       [&](const NetworkLevel& n) { return n.ranks > 0 && block % n.ranks != 0; });
  }

  /// Fastest layouts that may fit and have schedules designed for pairs, with pairs. Their overlap is not
  /// part of any bound, so they may be faster than all layouts tried.
  std::vector<Layout> fastest_with_pairs(const std::vector<Ranked>& all,
                                         const std::vector<Ranked>& fitting) const {
    std::vector<Layout> out;
    const auto take = [&](const Ranked& r) {
      if (out.size() == kPaired) return;
      for (Layout& l : with_pairs(r.layout, recipe_, limits_))
        if (std::find(out.begin(), out.end(), l) == out.end()) out.push_back(std::move(l));
    };
    for (const Ranked& r : fitting) take(r);
    std::vector<const Ranked*> open;
    for (const Ranked& r : all)
      if (r.bound.bytes <= memory() && r.layout.pipeline > 1 && has_pairs(r.layout) &&
          r.layout.overlap == OverlapChoice::off)
        open.push_back(&r);
    const size_t most = std::min(open.size(), 4 * kPaired);
    std::partial_sort(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(most), open.end(),
                      [](const Ranked* a, const Ranked* b) {
                        return a->speed() != b->speed() ? a->speed() > b->speed() : a->index < b->index;
                      });
    for (size_t i = 0; i < most; ++i) take(*open[i]);
    return out;
  }

  /// Tries more offload for the smallest layouts, one after the other until one fits, if nothing fits with
  /// only the optimizer state in host memory. Returns the number of layouts tried.
  size_t try_more_offload(const std::vector<Ranked>& smallest, std::vector<Ranked>& fitting) {
    size_t tried = 0;
    for (size_t i = 0; i < std::min(smallest.size(), kMoreOffload) && fitting.empty(); ++i) {
      std::vector<Ranked> batch;
      for (const Layout& l : with_more_offload(smallest[i].layout, recipe_, limits_)) {
        Ranked r{l, parts_.bound(l), next_index_++, 2, {}};
        if (r.bound.bytes <= memory()) batch.push_back(std::move(r));
      }
      tried += batch.size();
      try_all(std::move(batch), 0, fitting);
      if (seconds_since(start_) > limits_.seconds) break;
    }
    return tried;
  }

  /// Memory of a rank in bytes.
  double memory() const {
    const bool card = profile_.device_bytes > 0;
    const int64_t bytes = card ? profile_.device_bytes - limits_.keep_free
                               : (host_memory_bytes() - limits_.keep_free) / limits_.ranks_per_node;
    return static_cast<double>(bytes);
  }

  FoundLayout plan_of(const Ranked& r) const {
    FoundLayout f{r.layout, settings_of(r.layout, recipe_), r.bound, {}};
    std::vector<std::string> overrides;
    for (const auto& [key, value] : f.settings) overrides.push_back(key + "=" + value);
    const Recipe recipe = resolve(load_(overrides), limits_.world, limits_.ranks_per_node);
    f.plan = make_plan(recipe, profile_);
    const int64_t bytes = f.largest().total_bytes;
    const bool whole = r.trial.finished;
    // Shared costs come from the first layout that needed them, which may have summed them in another order.
    const double seconds = f.plan.step_seconds(), apart = std::abs(seconds - r.trial.step_seconds);
    const bool same = bytes == r.trial.bytes && apart <= 1e-9 * seconds;
    if (whole && !same)
      fail(ExitCode::internal, "ltrain plan --search: {}: tried as {} bytes and {} s, planned as {} and {} s",
           layout_text(r.layout, recipe_), r.trial.bytes, r.trial.step_seconds, bytes, f.plan.step_seconds());
    return f;
  }

  std::vector<FoundLayout> plans_of(const std::vector<Ranked>& of) const {
    std::vector<FoundLayout> out(of.size());
    on_all_cores(of.size(), [&](size_t i) { out[i] = plan_of(of[i]); });
    return out;
  }

  static void sort(std::vector<Ranked>& fitting) {
    std::sort(fitting.begin(), fitting.end(), [](const Ranked& a, const Ranked& b) {
      if (a.tried_speed() != b.tried_speed()) return a.tried_speed() > b.tried_speed();
      return a.trial.bytes != b.trial.bytes ? a.trial.bytes < b.trial.bytes : a.index < b.index;
    });
  }

  /// Pareto front by bounds, fastest first: each needs less memory than all before it.
  static std::vector<Ranked> smaller(std::vector<Ranked> open) {
    std::sort(open.begin(), open.end(), [](const Ranked& a, const Ranked& b) {
      return a.speed() != b.speed() ? a.speed() > b.speed() : a.index < b.index;
    });
    std::vector<Ranked> out;
    for (const Ranked& r : open)
      if (out.empty() || r.bound.bytes < kFrontStep * out.back().bound.bytes) {
        if (out.size() == kFrontTrials) break;
        out.push_back(r);
      }
    return out;
  }
  static std::vector<Ranked> front(const std::vector<Ranked>& sorted) {
    std::vector<Ranked> out;
    for (const Ranked& r : sorted)
      if (out.empty() || r.trial.bytes < out.back().trial.bytes) out.push_back(r);
    return out;
  }

  /// The smallest layout of each tensor degree (with and without sequence parallelism) and pipeline degree,
  /// smallest first. Bounds are compared in steps of 5 %, and ties go to fewer micro-batches, which are
  /// faster to plan. The bound does not include that a pipeline keeps several micro-batches. Therefore each
  /// degree also gets the layout that keeps the least, if its plan does not take too long.
  std::vector<Ranked> smallest(std::vector<Ranked> ranked) const {
    const auto micros = [](const Layout& l) { return l.global_batch / (l.micro_batch * l.data); };
    const auto order = [&](const Ranked& r) {
      return std::pair(std::floor(std::log(std::max(1.0, r.bound.bytes)) / std::log(1.05)), micros(r.layout));
    };
    std::stable_sort(ranked.begin(), ranked.end(),
                     [&](const Ranked& a, const Ranked& b) { return order(a) < order(b); });
    const auto keeps = [](const Layout& l) {
      return std::tuple(l.micro_batch, l.recompute != RecomputeGranularity::full, l.virtual_pipeline);
    };
    struct Found {
      const Ranked *first = nullptr, *small = nullptr;
    };
    std::map<std::tuple<int64_t, bool, int64_t>, Found> degrees;
    std::vector<Found*> found;
    for (const Ranked& r : ranked) {
      const Layout& l = r.layout;
      const auto at = degrees.try_emplace({l.tensor, l.sequence_parallel, l.pipeline});
      Found& f = at.first->second;
      if (at.second) f.first = &r, found.push_back(&f);
      const bool short_plan = recipe_.model.num_hidden_layers * micros(l) <= kMostOpsToChoose * l.pipeline;
      if (l.pipeline > 1 && short_plan && (!f.small || keeps(l) < keeps(f.small->layout))) f.small = &r;
    }
    std::vector<Ranked> out;
    for (size_t i = 0; i < std::min(found.size(), kSmallestTrials); ++i) {
      out.push_back(*found[i]->first);
      if (found[i]->small && found[i]->small != found[i]->first) out.push_back(*found[i]->small);
    }
    return out;
  }

  /// Adds advice: the smallest layout for this number of ranks, and the number of ranks that would fit.
  void advise(const std::vector<Ranked>& all, SearchResult& result) const {
    if (all.empty()) return;
    std::vector<Ranked> few = smallest(all);
    few.resize(std::min(few.size(), 2 * kFrontTrials));
    std::vector<FoundLayout> least = plans_of(few);
    const auto smallest_first = [&] {
      std::stable_sort(least.begin(), least.end(), [](const FoundLayout& a, const FoundLayout& b) {
        return a.largest().total_bytes < b.largest().total_bytes;
      });
      least.resize(1);
    };
    smallest_first();
    // Also the layout of these degrees with the smallest bound, which has more micro-batches.
    const auto degrees = [](const Layout& l) {
      return std::tuple(l.tensor, l.sequence_parallel, l.pipeline);
    };
    std::vector<Ranked> same;
    for (const Ranked& r : all)
      if (degrees(r.layout) == degrees(least.front().layout)) same.push_back(r);
    same = {*std::min_element(same.begin(), same.end(), [](const Ranked& a, const Ranked& b) {
      return a.bound.bytes < b.bound.bytes;
    })};
    for (FoundLayout& l : plans_of(same)) least.push_back(std::move(l));
    smallest_first();
    result.advice.smallest = std::move(least);
    for (int world = 2 * limits_.world; world <= kMostWorld; world *= 2) {
      SearchLimits more = limits_;
      more.world = world;
      more.ranks_per_node = nodes_of(world);
      Search larger(load_, profile_, more);
      SearchResult ignored;
      std::vector<Ranked> fitting;
      std::vector<Ranked> may_fit = larger.bounds(ignored);
      std::erase_if(may_fit, [&](const Ranked& r) { return r.bound.bytes > memory(); });
      larger.try_all(smallest(std::move(may_fit)), 0, fitting);
      if (fitting.empty()) continue;
      result.advice.fitting_world = world;
      return;
    }
  }

  int nodes_of(int world) const {
    const AssumedNode node = assumed_node(profile_, world, 0);
    const bool known = limits_.ranks_per_node < limits_.world || node.cards == 0;
    return known ? limits_.ranks_per_node : node.cards;
  }

  const LoadRecipe& load_;
  Recipe recipe_;
  const MachineProfile& profile_;
  SearchLimits limits_;
  SearchParts parts_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Ranked> unfit_;  ///< unfit layouts of all trials
  std::set<SearchParts::ActionsKey> priced_;
  size_t next_index_ = 0;  ///< index of the next layout outside the space
  int64_t wrong_bounds_ = 0;
};

}  // namespace

const RankPlan& FoundLayout::largest() const {
  return *std::max_element(plan.ranks.begin(), plan.ranks.end(), [](const RankPlan& a, const RankPlan& b) {
    return a.total_bytes < b.total_bytes;
  });
}

double FoundLayout::exposed_seconds() const {
  double most = 0;
  for (const RankPlan& r : plan.ranks) most = std::max(most, r.exposed_comm_seconds());
  return most;
}

SearchResult search_layouts(const LoadRecipe& load, const MachineProfile& profile, const SearchLimits& limits,
                            size_t count, int64_t most_trials) {
  return Search(load, profile, limits).run(count, most_trials);
}

}  // namespace ltrain
