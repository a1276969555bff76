#include "planner/search/enumerate.h"

#include <algorithm>

#include "base/error.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/plan/on_all_cores.h"
#include "runtime/recipe/rules/rules.h"

namespace ltrain {
namespace {

constexpr int64_t kMostSequences = 16;  // sequences of a micro-batch
constexpr int64_t kMostContext = 16;
constexpr size_t kChecked = 512;  // layouts checked by one thread with one recipe

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    out.push_back(d);
    if (d * d != n) out.push_back(n / d);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Nested loops over open settings, outermost first. Each loop sets its fields of `at_`. Calls `look` with
/// each layout, allowed by the rules or not.
class Walk {
 public:
  Walk(const Recipe& r, const SearchLimits& limits, const std::function<void(const Layout&)>& look)
      : given_(r), limits_(limits), look_(look) {
    at_.tensor_mode = r.parallel.tensor_mode, at_.tensor_depth = r.parallel.tensor_depth;
    at_.order = r.parallel.order;
    at_.reshard = r.parallel.reshard_after_forward;
    at_.zero_layers = r.parallel.zero_layers;
    at_.offload_optimizer = offloads(r.offload.optimizer);
    at_.offload_activations = offloads(r.offload.activations);
    at_.offload_params = offloads(r.offload.params);
    at_.overlap = r.parallel.overlap_micro_batches;
    at_.row_budget = r.model.moe.row_budget.value_or(0);
  }

  void run() {
    const Parallel& p = given_.parallel;
    const int64_t most = limits_.max_tensor > 0 ? limits_.max_tensor : limits_.ranks_per_node;
    for (int64_t batch : batches())
      for (Precision precision : precisions())
        for (int64_t t : open("parallel.tensor", p.tensor, divisors(limits_.world))) {
          if (!fixed("parallel.tensor") && (t > most || given_.model.num_attention_heads % t != 0)) continue;
          at_.global_batch = batch, at_.precision = precision, at_.tensor = t;
          for (bool sequences : sequence_choices(t)) {
            at_.sequence_parallel = sequences;
            pipelines();
          }
        }
  }

 private:
  bool fixed(const char* key) const { return given_.origins && given_.origins->has(key); }
  template <class T>
  std::vector<T> open(const char* key, T value, std::vector<T> choices) const {
    return fixed(key) ? std::vector<T>{value} : choices;
  }

  std::vector<int64_t> batches() const {
    if (limits_.batch_low == 0) return {given_.train.global_batch_size};
    std::vector<int64_t> out;
    for (int64_t b = limits_.batch_low; b <= limits_.batch_high; b *= 2) out.push_back(b);
    return out;
  }
  std::vector<Precision> precisions() const {
    return open("precision", given_.precision, {given_.precision, Precision::bf16});
  }
  std::vector<bool> sequence_choices(int64_t tensor) const {
    const char* key = "parallel.sequence_parallel";
    if (fixed(key)) return {given_.parallel.sequence_parallel};
    if (tensor == 1 || given_.parallel.tensor_mode != TensorModeChoice::one_d) return {false};
    return {false, true};
  }

  void pipelines() {
    const Parallel& p = given_.parallel;
    const int64_t rest = limits_.world / at_.tensor;
    if (rest * at_.tensor != limits_.world) return;
    for (int64_t n : open("parallel.pipeline", p.pipeline, divisors(rest))) {
      if (n > given_.model.num_hidden_layers || rest % n != 0) continue;
      at_.pipeline = n;
      for (int64_t c : open("parallel.context", p.context, divisors(rest / n))) {
        if (rest / n % c != 0 || given_.data.seq_length % c != 0) continue;
        if (!fixed("parallel.context") && c > kMostContext) continue;
        at_.context = c, at_.data = rest / n / c;
        if (fixed("parallel.data") && p.data > 0 && p.data != at_.data) continue;
        contexts();
      }
    }
  }

  void contexts() {
    using enum ContextComm;
    const ContextComm given = given_.parallel.context_comm;
    const auto kinds =
        at_.context == 1 ? std::vector{given} : open("parallel.context_comm", given, {p2p, a2a, all_gather});
    for (ContextComm kind : kinds) {
      at_.context_comm = kind;
      experts();
    }
  }

  void experts() {
    const Parallel& p = given_.parallel;
    const int64_t n = given_.model.moe.num_experts;
    const auto degrees =
        n == 0 ? std::vector<int64_t>{p.expert} : open("parallel.expert", p.expert, divisors(n));
    for (int64_t e : degrees) {
      std::vector<int64_t> parts{p.expert_tensor};
      if (n > 0 && at_.tensor > 1) parts = open("parallel.expert_tensor", p.expert_tensor, {1, at_.tensor});
      for (int64_t part : parts) {
        at_.expert = e, at_.expert_tensor = part;
        micro_batches();
      }
    }
  }

  void micro_batches() {
    std::vector<int64_t> sizes;
    for (int64_t n = 1; n <= kMostSequences; n *= 2) sizes.push_back(n);
    for (int64_t n : open("train.micro_batch_size", given_.train.micro_batch_size, sizes)) {
      if (at_.global_batch % (n * at_.data) != 0) continue;
      at_.micro_batch = n;
      schedules();
    }
  }

  void schedules() {
    const Parallel& p = given_.parallel;
    at_.schedule = p.schedule, at_.virtual_pipeline = p.virtual_pipeline;
    at_.overlap = p.overlap_micro_batches;
    if (at_.pipeline == 1 || p.schedule_file) return states();
    const int micros = static_cast<int>(at_.global_batch / (at_.micro_batch * at_.data));
    for (const pipeline::ScheduleInfo& s : pipeline::schedules()) {
      if (fixed("parallel.schedule") ? s.name != p.schedule : s.name == "gpipe") continue;
      std::vector<int64_t> chunks{s.least_chunks};
      if (s.most_chunks != s.least_chunks) chunks = {2, 4};
      for (int64_t v : open("parallel.virtual_pipeline", p.virtual_pipeline, chunks)) {
        if (v * at_.pipeline > given_.model.num_hidden_layers) continue;
        if (pipeline::schedule_rule(s.name, static_cast<int>(at_.pipeline), static_cast<int>(v), micros))
          continue;
        at_.schedule = s.name, at_.virtual_pipeline = v;
        // Only complete passes know the time hidden by pairs. They are tried for the fastest layouts
        // (with_pairs).
        const bool open = !fixed("parallel.overlap_micro_batches");
        at_.overlap = open && may_hide_collectives(at_) ? OverlapChoice::off : p.overlap_micro_batches;
        states();
      }
    }
    at_.overlap = p.overlap_micro_batches;
    if (fixed("parallel.schedule") && p.chooses_schedule()) states();
  }

  void states() {
    const Parallel& p = given_.parallel;
    const bool shares = at_.data * at_.context > 1;
    const auto stages =
        shares ? open("parallel.zero_stage", p.zero_stage, {0, 1, 2, 3}) : std::vector<int64_t>{p.zero_stage};
    for (int64_t zero : stages) {
      const bool two = zero > 0 && limits_.world > limits_.ranks_per_node;
      const auto groups = two ? open("parallel.shard_group", p.shard_group, {kOneLevel, kNode})
                              : std::vector<int64_t>{p.shard_group};
      for (int64_t group : groups) {
        at_.zero_stage = zero, at_.shard_group = group;
        recomputes();
      }
    }
  }

  void recomputes() {
    using enum RecomputeGranularity;
    const RecomputeGranularity given = given_.recompute.granularity;
    for (RecomputeGranularity g : open("recompute.granularity", given, {none, selective, full})) {
      at_.recompute = g;
      look_(at_);
    }
  }

  const Recipe& given_;
  const SearchLimits& limits_;
  const std::function<void(const Layout&)>& look_;
  Layout at_;
};

}  // namespace

bool rules_allow(const Recipe& r, const SearchLimits& limits) {
  recipe::Diagnostics problems;
  std::vector<std::string> notes;
  recipe::check_layout(r, *r.origins, limits.world, limits.ranks_per_node, problems);
  if (problems.empty()) recipe::check_rules(r, *r.origins, problems, notes);
  return problems.empty();
}

int64_t for_each_layout(const Recipe& recipe, const SearchLimits& limits,
                        const std::function<void(const Layout&)>& found) {
  LT_CHECK(recipe.origins, "expected a recipe read from a file or text, got one without origins");
  std::vector<Layout> all;
  Walk(recipe, limits, [&](const Layout& l) { all.push_back(l); }).run();
  std::vector<char> good(all.size());
  on_all_cores((all.size() + kChecked - 1) / kChecked, [&](size_t part) {
    Recipe r = recipe;
    for (size_t i = part * kChecked; i < std::min(all.size(), (part + 1) * kChecked); ++i) {
      set_layout(r, all[i]);
      good[i] = rules_allow(r, limits);
    }
  });
  for (size_t i = 0; i < all.size(); ++i)
    if (good[i]) found(all[i]);
  return static_cast<int64_t>(all.size());
}

}  // namespace ltrain
