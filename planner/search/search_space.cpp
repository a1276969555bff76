#include "planner/search/search_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/plan/on_all_cores.h"
#include "runtime/recipe/rules/fp8_rules.h"
#include "runtime/recipe/rules/rules.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain {
namespace {

constexpr int64_t kMostSequences = 16;  // sequences of a micro-batch
constexpr int64_t kMostContext = 16;
constexpr std::array kRowBudgets{1.5, 1.25};  // budgets for expert token rows that do not fit
constexpr size_t kChecked = 512;              // layouts checked by one thread with one recipe

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

bool allowed(const Recipe& r, const SearchLimits& limits) {
  recipe::Diagnostics problems;
  std::vector<std::string> notes;
  recipe::check_layout(r, *r.origins, limits.world, limits.ranks_per_node, problems);
  if (problems.empty()) recipe::check_rules(r, *r.origins, problems, notes);
  return problems.empty();
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
    at_.offload_optimizer = r.offload.optimizer.on();
    at_.offload_activations = r.offload.activations.on();
    at_.offload_params = r.offload.params.on();
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

/// Moves a kind of tensor to host memory or back, as `away` requests.
void set_place(OffloadPlace& place, bool away) {
  if (away != place.on()) place.device = away ? OffloadDevice::cpu : OffloadDevice::none;
}

/// Default modules of `selective` if the recipe gives none: those with much memory for little time.
std::vector<RecomputeModule> cheap_modules(const Recipe& r) {
  using enum RecomputeModule;
  if (r.model.moe.num_experts > 0) return {layernorm};
  return {layernorm, mlp_act};
}

}  // namespace

void set_layout(Recipe& r, const Layout& l) {
  Parallel& p = r.parallel;
  p.tensor = l.tensor, p.sequence_parallel = l.sequence_parallel;
  p.pipeline = l.pipeline, p.virtual_pipeline = l.virtual_pipeline, p.schedule = l.schedule;
  p.context = l.context, p.context_comm = l.context_comm;
  p.expert = l.expert, p.expert_tensor = l.expert_tensor;
  p.data = l.data, p.zero_stage = l.zero_stage, p.shard_group = l.shard_group;
  p.reshard_after_forward = l.reshard;
  r.train.micro_batch_size = l.micro_batch, r.train.global_batch_size = l.global_batch;
  r.precision = l.precision;
  const bool given =
      r.origins && (r.origins->has("recompute.modules") || r.origins->has("recompute.tensors"));
  if (!given)
    r.recompute.modules =
        l.recompute == RecomputeGranularity::selective ? cheap_modules(r) : std::vector<RecomputeModule>{};
  r.recompute.granularity = l.recompute;
  p.tensor_mode = l.tensor_mode, p.tensor_depth = l.tensor_depth, p.order = l.order;
  p.overlap_micro_batches = l.overlap;
  set_place(r.offload.optimizer, l.offload_optimizer);
  set_place(r.offload.activations, l.offload_activations);
  set_place(r.offload.params, l.offload_params);
  if (l.row_budget > 0) r.model.moe.row_budget = l.row_budget;
}

bool has_pairs(const Layout& l) {
  const pipeline::ScheduleInfo* schedule = pipeline::find_schedule(l.schedule);
  if (l.pipeline == 1 || !schedule) return l.pipeline > 1;
  return schedule->pairs == pipeline::Pairs::intended ||
         (schedule->pairs == pipeline::Pairs::possible && l.overlap == OverlapChoice::on);
}

bool may_hide_collectives(const Layout& l) {
  const bool turns = l.overlap == OverlapChoice::on || (l.overlap == OverlapChoice::automatic &&
                                                        (l.tensor > 1 || l.context > 1 || l.expert > 1));
  return turns && (l.pipeline == 1 || has_pairs(l));
}

std::vector<Setting> settings_of(const Layout& l, const Recipe& r) {
  std::vector<Setting> out;
  const auto set = [&](const char* key, const auto& value, const auto& default_value) {
    if (value != default_value) out.emplace_back(key, fmt::format("{}", value));
  };
  const Parallel& p = r.parallel;
  set("parallel.tensor", l.tensor, p.tensor);
  set("parallel.sequence_parallel", l.sequence_parallel, p.sequence_parallel);
  set("parallel.pipeline", l.pipeline, p.pipeline);
  set("parallel.schedule", l.schedule, p.schedule);
  set("parallel.virtual_pipeline", l.virtual_pipeline, p.virtual_pipeline);
  set("parallel.context", l.context, p.context);
  set("parallel.context_comm", to_string(l.context_comm), to_string(p.context_comm));
  set("parallel.expert", l.expert, p.expert);
  // Its default depends on parallel.tensor.
  if (r.model.moe.num_experts > 0 && l.tensor > 1)
    out.emplace_back("parallel.expert_tensor", std::to_string(l.expert_tensor));
  set("parallel.data", l.data, p.data);
  set("parallel.zero_stage", l.zero_stage, p.zero_stage);
  set("parallel.reshard_after_forward", l.reshard, p.reshard_after_forward);
  if (l.shard_group != p.shard_group) out.emplace_back("parallel.shard_group", "node");
  set("train.micro_batch_size", l.micro_batch, r.train.micro_batch_size);
  set("train.global_batch_size", l.global_batch, r.train.global_batch_size);
  set("precision", to_string(l.precision), to_string(r.precision));
  set("recompute.granularity", to_string(l.recompute), to_string(r.recompute.granularity));
  const bool given =
      r.origins && (r.origins->has("recompute.modules") || r.origins->has("recompute.tensors"));
  if (l.recompute == RecomputeGranularity::selective && !given) {
    std::string names;
    for (RecomputeModule m : cheap_modules(r))
      names += (names.empty() ? "" : ",") + std::string(to_string(m));
    out.emplace_back("recompute.modules", "[" + names + "]");
  }
  set("parallel.tensor_mode", to_string(l.tensor_mode), to_string(p.tensor_mode));
  set("parallel.tensor_depth", l.tensor_depth, p.tensor_depth);
  set("parallel.order", l.order, p.order);
  set("parallel.overlap_micro_batches", to_string(l.overlap), to_string(p.overlap_micro_batches));
  if (l.offload_optimizer && !r.offload.optimizer.on()) out.emplace_back("offload.optimizer.device", "cpu");
  if (l.offload_activations && !r.offload.activations.on())
    out.emplace_back("offload.activations.device", "cpu");
  if (l.offload_params && !r.offload.params.on()) out.emplace_back("offload.params.device", "cpu");
  set("model.moe.row_budget", l.row_budget, r.model.moe.row_budget.value_or(0));
  return out;
}

std::string layout_text(const Layout& l, const Recipe& r) {
  std::vector<std::string> parts;
  if (l.tensor > 1)
    parts.push_back(
        fmt::format("tensor {}{}{}", l.tensor,
                    l.tensor_mode == TensorModeChoice::one_d ? "" : fmt::format(" in {}", l.tensor_mode),
                    l.sequence_parallel ? " with sequence parallelism" : ""));
  if (l.pipeline > 1)
    parts.push_back(fmt::format(
        "pipeline {} {}{}", l.pipeline, l.schedule,
        l.virtual_pipeline > 1 ? fmt::format(" of {} chunks", l.virtual_pipeline) : std::string()));
  if (l.context > 1) parts.push_back(fmt::format("context {} {}", l.context, to_string(l.context_comm)));
  if (l.expert > 1)
    parts.push_back(fmt::format("expert {}{}", l.expert,
                                l.tensor > 1 ? fmt::format(" expert_tensor {}", l.expert_tensor) : ""));
  if (l.row_budget > 0) parts.push_back(fmt::format("row budget {}", l.row_budget));
  parts.push_back(fmt::format("data {}", l.data));
  if (l.zero_stage > 0)
    parts.push_back(fmt::format("ZeRO {}{}{}", l.zero_stage, l.shard_group == kNode ? " in a node" : "",
                                l.reshard ? "" : " with weights gathered once a step"));
  parts.push_back(fmt::format("micro-batch {}", l.micro_batch));
  if (l.global_batch != r.train.global_batch_size)
    parts.push_back(fmt::format("global batch {}", l.global_batch));
  if (l.precision != r.precision) parts.emplace_back(to_string(l.precision));
  if (l.recompute != RecomputeGranularity::none)
    parts.push_back(fmt::format("{} recompute", to_string(l.recompute)));
  if (l.order != r.parallel.order) parts.push_back(fmt::format("order {}", l.order));
  if (l.overlap != r.parallel.overlap_micro_batches)
    parts.emplace_back(l.overlap == OverlapChoice::on ? "micro-batches by turns" : "micro-batches apart");
  std::vector<std::string> away;
  if (l.offload_optimizer && !r.offload.optimizer.on()) away.emplace_back("optimizer state");
  if (l.offload_params && !r.offload.params.on()) away.emplace_back("weights");
  if (l.offload_activations && !r.offload.activations.on()) away.emplace_back("activations");
  if (!away.empty()) parts.push_back(fmt::format("{} in host memory", fmt::join(away, " and ")));
  return fmt::format("{}", fmt::join(parts, ", "));
}

namespace {

bool is_open(const Recipe& r, const char* key) { return !r.origins->has(key); }

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

std::vector<Layout> only_allowed(std::vector<Layout> layouts, const Recipe& recipe,
                                 const SearchLimits& limits) {
  std::erase_if(layouts, [&](const Layout& l) {
    Recipe r = recipe;
    set_layout(r, l);
    return !allowed(r, limits) || (l.precision == Precision::fp8 && !multiplies_fp8(std::move(r), limits));
  });
  return layouts;
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

bool may_offload(const Layout& l, const Recipe& r) {
  return r.device == DeviceChoice::cuda && !l.offload_optimizer && is_open(r, "offload.optimizer.device");
}

}  // namespace

std::vector<Layout> variants_of(const Layout& l, const Recipe& recipe, const SearchLimits& limits) {
  std::vector<Layout> out;
  const auto add = [&](auto change) { change(out.emplace_back(l)); };
  // On one node, or with one stage, both orders are equivalent.
  if (l.pipeline > 1 && limits.world > limits.ranks_per_node && is_open(recipe, "parallel.order"))
    add([](Layout& v) { v.order = v.order == "tp-cp-pp-dp" ? "tp-cp-dp-pp" : "tp-cp-pp-dp"; });
  if (l.tensor > 1 && l.tensor_mode == TensorModeChoice::one_d && is_open(recipe, "parallel.tensor_mode")) {
    using enum TensorModeChoice;
    for (const auto& [mode, depth] : {std::pair{two_d, 1}, {two_and_half_d, 2}, {three_d, 1}})
      add([&, mode = mode, depth = depth](Layout& v) {
        v.tensor_mode = mode, v.tensor_depth = depth;
        if (is_open(recipe, "parallel.sequence_parallel")) v.sequence_parallel = false;
      });
  }
  if (l.recompute != RecomputeGranularity::none && may_offload(l, recipe) &&
      is_open(recipe, "recompute.granularity"))
    add([](Layout& v) { v.offload_optimizer = true, v.recompute = RecomputeGranularity::none; });
  if (const auto overlap = other_overlap(l, recipe)) add([&](Layout& v) { v.overlap = *overlap; });
  const bool could_be_two = is_open(recipe, "parallel.zero_stage");
  if (l.zero_stage == 3 && l.reshard && !could_be_two && is_open(recipe, "parallel.reshard_after_forward"))
    add([](Layout& v) { v.reshard = false; });
  if (limits.allow_fp8 && l.precision == Precision::bf16 && is_open(recipe, "precision"))
    add([](Layout& v) { v.precision = Precision::fp8; });
  return only_allowed(std::move(out), recipe, limits);
}

std::vector<Layout> with_chosen_recompute(const Layout& l, const Recipe& recipe, const SearchLimits& limits) {
  if (l.recompute == RecomputeGranularity::none || !is_open(recipe, "recompute.granularity")) return {};
  Layout v = l;
  v.recompute = RecomputeGranularity::automatic;
  return only_allowed({v}, recipe, limits);
}

std::vector<Layout> with_pairs(const Layout& l, const Recipe& recipe, const SearchLimits& limits) {
  const auto overlap = l.pipeline > 1 && has_pairs(l) ? other_overlap(l, recipe) : std::nullopt;
  if (!overlap || *overlap == OverlapChoice::off) return {};
  Layout v = l;
  v.overlap = *overlap;
  return only_allowed({v}, recipe, limits);
}

std::vector<Layout> with_row_budget(const Layout& l, const Recipe& recipe, const SearchLimits& limits) {
  if (recipe.model.moe.num_experts == 0 || l.expert == 1 || !is_open(recipe, "model.moe.row_budget") ||
      (l.row_budget > 0 && l.row_budget <= kRowBudgets.back()))
    return {};
  Layout v = l;
  v.row_budget = *std::find_if(kRowBudgets.begin(), kRowBudgets.end(),
                               [&](double b) { return l.row_budget == 0 || b < l.row_budget; });
  return only_allowed({v}, recipe, limits);
}

std::vector<Layout> with_offload(const Layout& l, const Recipe& recipe, const SearchLimits& limits) {
  if (!may_offload(l, recipe)) return {};
  Layout v = l;
  v.offload_optimizer = true;
  return only_allowed({v}, recipe, limits);
}

std::vector<Layout> with_more_offload(const Layout& l, const Recipe& recipe, const SearchLimits& limits) {
  if (recipe.device != DeviceChoice::cuda) return {};
  const bool activations = !l.offload_activations && is_open(recipe, "offload.activations.device"),
             params = !l.offload_params && l.zero_stage == 3 && is_open(recipe, "offload.params.device");
  std::vector<Layout> out;
  const auto add = [&](bool of_activations, bool of_params) {
    Layout& v = out.emplace_back(l);
    if (may_offload(l, recipe)) v.offload_optimizer = true;
    v.offload_activations = l.offload_activations || of_activations;
    v.offload_params = l.offload_params || of_params;
  };
  if (activations) add(true, false);
  if (params) add(false, true);
  if (activations && params) add(true, true);
  return only_allowed(std::move(out), recipe, limits);
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
      good[i] = allowed(r, limits);
    }
  });
  for (size_t i = 0; i < all.size(); ++i)
    if (good[i]) found(all[i]);
  return static_cast<int64_t>(all.size());
}

}  // namespace ltrain
