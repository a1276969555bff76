#include "planner/search/trials.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "planner/search/enumerate.h"
#include "planner/search/variants.h"
#include "runtime/launch/cgroup.h"
#include "runtime/plan/on_all_cores.h"

namespace ltrain {
namespace {

constexpr size_t kBatch = 16;         // candidates tried before others are selected
constexpr size_t kPriced = 256;       // candidates priced at once
constexpr size_t kMostPriced = 2048;  // limit if fewer than kFresh keys are new
constexpr size_t kFresh = 16;

/// Order of a heap whose front is the candidate with the best bound.
bool slower_by_bound(const LayoutCandidate& a, const LayoutCandidate& b) { return faster_by_bound(b, a); }

LayoutCandidate pop(std::vector<LayoutCandidate>& heap) {
  std::pop_heap(heap.begin(), heap.end(), slower_by_bound);
  LayoutCandidate c = std::move(heap.back());
  heap.pop_back();
  return c;
}

void push(std::vector<LayoutCandidate>& heap, LayoutCandidate c) {
  heap.push_back(std::move(c));
  std::push_heap(heap.begin(), heap.end(), slower_by_bound);
}

bool is_priced(const LayoutCandidate& c) { return c.price == Price::actions; }

}  // namespace

double last_speed(const std::vector<LayoutCandidate>& fitting, size_t count) {
  return fitting.size() < count ? 0 : fitting[count - 1].tried_speed();
}

double Trials::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

double Trials::memory() const {
  const bool card = profile_.device_bytes > 0;
  const int64_t bytes = card ? profile_.device_bytes - limits_.keep_free
                             : (host_memory_bytes() - limits_.keep_free) / limits_.ranks_per_node;
  return static_cast<double>(bytes);
}

LayoutCandidate Trials::candidate(const Layout& layout) {
  LayoutCandidate c;
  c.layout = layout;
  c.index = next_index_++;
  c.price = parts_.has_actions(layout) ? Price::none : Price::actions;
  return c;
}

Trials::Space Trials::enumerate() {
  Space space;
  std::vector<LayoutCandidate>& all = space.candidates;
  space.looked_at = for_each_layout(recipe_, limits_, [&](const Layout& l) { all.push_back(candidate(l)); });
  space.allowed = static_cast<int64_t>(all.size());
  on_all_cores_by_key(
      all.size(), [&](size_t i) { return SearchParts::key_of(all[i].layout); },
      [&](size_t i) { all[i].bound = parts_.bound(all[i].layout); });
  for (size_t from = 0; from < all.size();) {
    std::vector<LayoutCandidate> unfit;
    std::copy_if(all.begin() + static_cast<std::ptrdiff_t>(from), all.end(), std::back_inserter(unfit),
                 [&](const LayoutCandidate& c) { return !may_fit(c); });
    from = all.size();
    for (LayoutCandidate& c : with_row_budgets(unfit)) all.push_back(std::move(c));
  }
  return space;
}

std::vector<LayoutCandidate> Trials::with_row_budgets(const std::vector<LayoutCandidate>& unfit) {
  std::vector<LayoutCandidate> out;
  for (const LayoutCandidate& c : unfit)
    for (const Layout& l : variants_of(c.layout, VariantKind::row_budget, recipe_, limits_))
      out.push_back(candidate(l));
  on_all_cores(out.size(), [&](size_t i) { out[i].bound = parts_.bound(out[i].layout); });
  return out;
}

std::vector<LayoutCandidate> Trials::candidates_of(const std::vector<Layout>& variants) {
  std::vector<LayoutCandidate> out;
  for (const Layout& l : variants) {
    out.push_back(candidate(l));
    out.back().price = Price::actions;
  }
  on_all_cores_by_key(
      out.size(), [&](size_t i) { return SearchParts::key_of(out[i].layout); },
      [&](size_t i) { out[i].bound = parts_.bound(out[i].layout); });
  return out;
}

void Trials::try_fastest(std::vector<LayoutCandidate>& open, size_t count, int64_t most_trials,
                         std::vector<LayoutCandidate>& fitting) {
  std::make_heap(open.begin(), open.end(), slower_by_bound);
  const auto put_back = [&](std::vector<LayoutCandidate> candidates) {
    for (LayoutCandidate& c : candidates)
      if (may_fit(c)) push(open, std::move(c));
  };
  for (int64_t trials = 0; trials < most_trials && in_time();) {
    const double last = last_speed(fitting, count);
    if (limits_.progress)
      limits_.progress(trials, std::count_if(open.begin(), open.end(), [&](const LayoutCandidate& c) {
                         return !(c.bound_speed() < last);
                       }));
    std::vector<LayoutCandidate> batch = next_batch(open, last);
    if (batch.empty()) return;
    if (!std::all_of(batch.begin(), batch.end(), is_priced)) {
      // Prices only raise bounds, so the same candidates are tried first.
      add_to_price(batch, open, last);
      price(batch);
      put_back(std::move(batch));
      continue;
    }
    trials += static_cast<int64_t>(batch.size());
    const auto before = static_cast<std::ptrdiff_t>(unfit_.size());
    try_all(std::move(batch), last, fitting);
    put_back(with_row_budgets({unfit_.begin() + before, unfit_.end()}));
    std::sort(fitting.begin(), fitting.end(), faster_by_trial);
  }
}

/// Takes the first candidates from the heap that may reach `speed`.
std::vector<LayoutCandidate> Trials::next_batch(std::vector<LayoutCandidate>& open, double speed) {
  std::vector<LayoutCandidate> batch;
  while (batch.size() < kBatch && !open.empty() && !(open.front().bound_speed() < speed))
    batch.push_back(pop(open));
  return batch;
}

/// Adds the next candidates to a batch that will be priced: more of them if there are too few new keys for
/// all cores.
void Trials::add_to_price(std::vector<LayoutCandidate>& batch, std::vector<LayoutCandidate>& open,
                          double speed) {
  std::set<Key> fresh;
  const auto note = [&](const LayoutCandidate& c) {
    if (is_priced(c)) return;
    if (Key key = price_key(c); !priced_.contains(key)) fresh.insert(std::move(key));
  };
  std::for_each(batch.begin(), batch.end(), note);
  while ((batch.size() < kPriced || (batch.size() < kMostPriced && fresh.size() < kFresh)) && !open.empty() &&
         !(open.front().bound_speed() < speed)) {
    batch.push_back(pop(open));
    note(batch.back());
  }
  priced_.merge(fresh);
}

/// Raises each bound by its next pipeline price.
void Trials::price(std::vector<LayoutCandidate>& batch) {
  std::vector<LayoutCandidate*> open;
  for (LayoutCandidate& c : batch)
    if (!is_priced(c)) open.push_back(&c);
  on_all_cores_by_key(
      open.size(), [&](size_t i) { return price_key(*open[i]); },
      [&](size_t i) {
        LayoutCandidate& c = *open[i];
        const bool least = c.price == Price::none;
        const Bound b = least ? Bound{parts_.least_actions(c.layout), 0} : parts_.actions(c.layout);
        c.bound = {std::max(c.bound.step_seconds, b.step_seconds), std::max(c.bound.bytes, b.bytes)};
        c.price = least ? Price::least_actions : Price::actions;
      });
}

/// Candidates with the same key share the work of the next price.
Trials::Key Trials::price_key(const LayoutCandidate& c) {
  if (c.price != Price::none) return SearchParts::actions_key_of(c.layout);
  Key key{};
  key.part = SearchParts::key_of(c.layout);
  return key;
}

void Trials::try_all(std::vector<LayoutCandidate> batch, double speed,
                     std::vector<LayoutCandidate>& fitting) {
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
  for (LayoutCandidate& c : batch) {
    if (!c.trial.fits) unfit_.push_back(c);
    if (!c.trial.finished) continue;
    const bool below =
        c.trial.step_seconds < c.bound.step_seconds || static_cast<double>(c.trial.bytes) < c.bound.bytes;
    wrong_bounds_ += below ? 1 : 0;
    fitting.push_back(std::move(c));
  }
}

}  // namespace ltrain
