#include "parallel/pipeline/choose_schedule.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "parallel/pipeline/fill_weights.h"
#include "parallel/pipeline/split_layers.h"

namespace ltrain::pipeline {
namespace {

bool excluded(const ChoiceOptions& o, std::string_view name) {
  return std::find(o.without.begin(), o.without.end(), name) != o.without.end();
}

/// True if a is less than b beyond rounding.
bool clearly_less(double a, double b) { return a < b * (1 - 1e-9); }

struct Tried {
  Candidate candidate;
  std::optional<Choice> made;
};

Tried try_one(const LayerCosts& model, int ranks, int micros, const ChoiceOptions& o,
              const ScheduleInfo& info, int chunks) {
  Tried t;
  t.candidate.name = info.name;
  t.candidate.chunks = chunks;
  const int64_t stages = int64_t{ranks} * chunks;
  if (stages > model.layers()) {
    t.candidate.refused = fmt::format("needs at least {} layers, and there are {}", stages, model.layers());
    return t;
  }
  if (const BrokenRule rule = schedule_rule(info.name, ranks, chunks, micros)) {
    t.candidate.refused = rule.text;
    return t;
  }
  Choice c;
  c.schedule =
      make_schedule(std::string(info.name), ranks, chunks, micros, o.pairs && info.pairs == Pairs::intended);
  const bool by_hand = static_cast<int64_t>(o.counts.size()) == stages;
  c.staged = stage_costs(model, c.schedule.rank_of_stage, by_hand ? o.counts : std::vector<int>{});
  Schedule filled = fill_with_weights(c.schedule, c.staged.costs);
  t.candidate.weights_moved = filled.order != c.schedule.order;
  c.schedule = std::move(filled);
  c.timing = simulate(c.schedule, c.staged.costs);
  t.candidate.step = c.timing.step;
  t.candidate.bubble_share = c.timing.bubble_share;
  t.candidate.peak_kept = *std::max_element(c.timing.peak_kept.begin(), c.timing.peak_kept.end());
  for (size_t r = 0; r < o.limit.size() && t.candidate.refused.empty(); ++r)
    if (c.timing.peak_kept[r] > o.limit[r] * (1 + 1e-9))
      t.candidate.refused =
          fmt::format("rank {} keeps {:.4g}, and {:.4g} fit", r, c.timing.peak_kept[r], o.limit[r]);
  if (t.candidate.refused.empty()) t.made = std::move(c);
  return t;
}

}  // namespace

StagedCosts stage_costs(const LayerCosts& m, const std::vector<int>& rank_of_stage,
                        const std::vector<int>& counts) {
  const size_t n = m.forward.size();
  const int stages = static_cast<int>(rank_of_stage.size());
  LT_CHECK(n > 0 && m.input.size() == n && m.weight.size() == n &&
               (m.activation.empty() || m.activation.size() == n),
           "expected costs of forward, input and weight for the same layers, got {}, {} and {} layers", n,
           m.input.size(), m.weight.size());
  StagedCosts s;
  s.layers = counts;
  if (s.layers.empty()) {
    std::vector<double> all(n);
    for (size_t i = 0; i < n; ++i) all[i] = m.forward[i] + m.input[i] + m.weight[i];
    const double first = m.first_forward + m.first_input + m.first_weight;
    const double last = m.last_forward + m.last_input + m.last_weight;
    s.layers = balance_ranks(all, first, last, split_layers(all, first, last, stages), rank_of_stage);
  }
  LT_CHECK(static_cast<int>(s.layers.size()) == stages, "expected layer counts of {} stages, got {}", stages,
           s.layers.size());
  s.costs.forward = stage_sums(m.forward, m.first_forward, m.last_forward, s.layers);
  s.costs.input = stage_sums(m.input, m.first_input, m.last_input, s.layers);
  if (!m.recompute.empty())
    for (int stage = 0, layer = 0; stage < stages; layer += s.layers[stage++])
      for (int i = 0; i < std::min<int64_t>(s.layers[stage], m.recomputed_layers); ++i)
        s.costs.input[stage] += m.recompute.at(static_cast<size_t>(layer + i));
  s.costs.weight = stage_sums(m.weight, m.first_weight, m.last_weight, s.layers);
  s.costs.activation = stage_sums(m.activation.empty() ? std::vector<double>(n, 1) : m.activation,
                                  m.first_activation, m.last_activation, s.layers);
  if (m.hidden > 0)
    for (const int forward : s.layers)
      for (const int backward : s.layers) s.costs.hidden.push_back(m.hidden * std::min(forward, backward));
  s.costs.transfer = m.transfer;
  s.costs.optimizer = m.optimizer;
  return s;
}

Choice choose_schedule(const LayerCosts& model, int ranks, int micros, const ChoiceOptions& options) {
  LT_CHECK(options.limit.empty() || static_cast<int>(options.limit.size()) == ranks,
           "expected limits of {} ranks, got {}", ranks, options.limit.size());
  std::vector<Tried> tried;
  for (const ScheduleInfo& info : schedules()) {
    if (excluded(options, info.name)) continue;
    const int most =
        info.most_chunks > 0 ? info.most_chunks : std::max(info.least_chunks, options.most_chunks);
    for (int chunks = info.least_chunks; chunks <= most; ++chunks) {
      if (chunks > info.least_chunks && int64_t{ranks} * chunks > model.layers()) break;
      tried.push_back(try_one(model, ranks, micros, options, info, chunks));
    }
  }
  std::stable_sort(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) {
    if (a.made.has_value() != b.made.has_value()) return a.made.has_value();
    return a.made && a.candidate.step < b.candidate.step;
  });
  // Among times that differ by rounding only, the one with the least activations.
  size_t best = 0;
  for (size_t i = 1;
       i < tried.size() && tried[i].made && !clearly_less(tried[0].candidate.step, tried[i].candidate.step);
       ++i)
    if (clearly_less(tried[i].candidate.peak_kept, tried[best].candidate.peak_kept)) best = i;
  std::rotate(tried.begin(), tried.begin() + static_cast<std::ptrdiff_t>(best),
              tried.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  std::vector<Candidate> table;
  for (const Tried& t : tried) table.push_back(t.candidate);
  if (tried.empty() || !tried.front().made)
    fail(ExitCode::usage, "no pipeline schedule fits {} ranks, {} micro-batches and {} layers:\n{}", ranks,
         micros, model.layers(), choice_table(table));
  table.front().chosen = true;
  Choice c = std::move(*tried.front().made);
  c.tried = std::move(table);
  return c;
}

std::string choice_table(const std::vector<Candidate>& tried) {
  std::string out =
      fmt::format("  {:<12}{:>7}{:>12}{:>10}{:>12}\n", "schedule", "chunks", "time", "bubble", "kept");
  for (const Candidate& c : tried) {
    out += fmt::format("{} {:<12}{:>7}", c.chosen ? '*' : ' ', c.name, c.chunks);
    if (c.step > 0)
      out += fmt::format("{:>12.4g}{:>8.1f} %{:>12.4g}", c.step, 100 * c.bubble_share, c.peak_kept);
    if (c.weights_moved) out += "  W placed by cost";
    if (!c.refused.empty()) out += "  " + c.refused;
    out += '\n';
  }
  return out;
}

}  // namespace ltrain::pipeline
