// Bounds and trials of candidates: the steps "bound" and "try" of a search.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "planner/search/candidate.h"

namespace ltrain {

/// Lowest speed of the `count` fastest; 0 if there are fewer. `fitting`: fastest first.
double last_speed(const std::vector<LayoutCandidate>& fitting, size_t count);

class Trials {
 public:
  /// `recipe` is not resolved. All three must outlive this object.
  Trials(const Recipe& recipe, const MachineProfile& profile, const SearchLimits& limits)
      : recipe_(recipe), profile_(profile), limits_(limits), parts_(recipe, profile, limits) {}

  /// Candidates of all layouts that the rules allow, in the order of the space, then those with row budgets.
  struct Space {
    int64_t looked_at = 0, allowed = 0;
    std::vector<LayoutCandidate> candidates;
  };
  Space enumerate();
  /// Candidates of variants, with bounds. They have no pipeline price, and are tried without one.
  std::vector<LayoutCandidate> candidates_of(const std::vector<Layout>& variants);

  /// Tries candidates of `open` that may be among the `count` fastest, best bound first, and leaves the
  /// others. Adds those that fit to `fitting`, which it sorts.
  void try_fastest(std::vector<LayoutCandidate>& open, size_t count, int64_t most_trials,
                   std::vector<LayoutCandidate>& fitting);
  /// Tries candidates and adds the fitting ones to `fitting`, except those slower than `speed`. 0: no limit.
  void try_all(std::vector<LayoutCandidate> batch, double speed, std::vector<LayoutCandidate>& fitting);

  /// Layers that a tried layout of ZeRO-3 may leave to ZeRO-2, by the memory that it leaves free.
  int64_t zero_layers_of(const LayoutCandidate& c) {
    return parts_.zero_layers_in(c.layout, memory() - static_cast<double>(c.trial.bytes));
  }
  double memory() const;  ///< memory of a rank, in bytes
  bool may_fit(const LayoutCandidate& c) const { return c.bound.bytes <= memory(); }
  const std::vector<LayoutCandidate>& unfit() const { return unfit_; }  ///< every trial that did not fit
  double seconds() const;                                               ///< since the construction
  bool in_time() const { return seconds() < limits_.seconds; }
  int64_t composed() const { return parts_.composed(); }
  int64_t whole() const { return parts_.whole(); }
  int64_t wrong_bounds() const { return wrong_bounds_; }

  const Recipe& recipe() const { return recipe_; }
  const SearchLimits& limits() const { return limits_; }
  const MachineProfile& profile() const { return profile_; }

 private:
  using Key = SearchParts::ActionsKey;
  LayoutCandidate candidate(const Layout& layout);
  /// Candidates that do not fit, with a smaller MoE row budget.
  std::vector<LayoutCandidate> with_row_budgets(const std::vector<LayoutCandidate>& unfit);
  std::vector<LayoutCandidate> next_batch(std::vector<LayoutCandidate>& open, double speed);
  void add_to_price(std::vector<LayoutCandidate>& batch, std::vector<LayoutCandidate>& open, double speed);
  void price(std::vector<LayoutCandidate>& batch);
  static Key price_key(const LayoutCandidate& c);

  const Recipe& recipe_;
  const MachineProfile& profile_;
  const SearchLimits& limits_;
  SearchParts parts_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<LayoutCandidate> unfit_;
  std::set<Key> priced_;
  size_t next_index_ = 0;
  int64_t wrong_bounds_ = 0;
};

}  // namespace ltrain
