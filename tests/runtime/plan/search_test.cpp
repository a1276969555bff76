// plan --search: layouts that the recipe's rules allow, what is composed against whole plans, what fits.
#include "runtime/plan/search.h"

#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

using namespace ltrain;
using Catch::Contains;

namespace {

const char* kDense =
    "name: tiny\ndevice: cuda\nprecision: bf16\n"
    "model: {architecture: llama, vocab_size: 32000, hidden_size: 1024, intermediate_size: 2816, "
    "num_hidden_layers: 8, num_attention_heads: 16, num_key_value_heads: 8, max_position_embeddings: 4096}\n"
    "data: {seq_length: 2048}\n"
    "train: {global_batch_size: 64, train_steps: 10}\n";
const char* kMoe =
    "name: tiny\ndevice: cuda\nprecision: bf16\n"
    "model: {architecture: mixtral, vocab_size: 32000, hidden_size: 1024, intermediate_size: 2816, "
    "num_hidden_layers: 4, num_attention_heads: 16, num_key_value_heads: 8, max_position_embeddings: 4096, "
    "moe: {num_experts: 8, top_k: 2}}\n"
    "data: {seq_length: 2048}\n"
    "train: {global_batch_size: 32, train_steps: 10}\n";

/// Layers of two kinds.
const char* kUneven =
    "name: tiny\ndevice: cuda\nprecision: bf16\n"
    "model: {architecture: mixtral, vocab_size: 32000, hidden_size: 1024, intermediate_size: 2816, "
    "num_hidden_layers: 6, num_attention_heads: 16, num_key_value_heads: 8, max_position_embeddings: 4096, "
    "moe: {num_experts: 8, top_k: 2, layer_step: 3}}\n"
    "data: {seq_length: 2048}\n"
    "train: {global_batch_size: 32, train_steps: 10}\n";

LoadRecipe reader(const std::string& text, std::vector<std::string> fixed = {}) {
  return [=](const std::vector<std::string>& settings) {
    std::vector<std::string> all = fixed;
    all.insert(all.end(), settings.begin(), settings.end());
    return parse_recipe(text, "tiny.yaml", all);
  };
}

SearchLimits on(int world, int per_node = 8) {
  SearchLimits limits;
  limits.world = world;
  limits.ranks_per_node = std::min(world, per_node);
  return limits;
}

std::vector<Layout> layouts(const Recipe& r, const SearchLimits& limits) {
  std::vector<Layout> all;
  for_each_layout(r, limits, [&](const Layout& l) { all.push_back(l); });
  return all;
}

Recipe with(const LoadRecipe& load, const Layout& l, const SearchLimits& limits) {
  std::vector<std::string> settings;
  for (const auto& [key, value] : settings_of(l, load({}))) settings.push_back(key + "=" + value);
  return resolve(load(settings), limits.world, limits.ranks_per_node);
}

constexpr const char* kLarge =
    "name: large\ndevice: cuda\nprecision: bf16\n"
    "model: {architecture: llama, vocab_size: 32000, hidden_size: 8192, intermediate_size: 28672, "
    "num_hidden_layers: 8, num_attention_heads: 64, num_key_value_heads: 8, "
    "max_position_embeddings: 4096}\n"
    "data: {seq_length: 4096}\n"
    "train: {global_batch_size: 64, train_steps: 10}\n";

struct LargeOn32 {
  const LoadRecipe load = reader(kLarge);
  const Recipe recipe = load({});
  const SearchLimits limits = on(32);
  const MachineProfile profile = find_profile("h200");
  SearchParts parts{recipe, profile, limits};
};

}  // namespace

TEST_CASE("every layout of a search is a recipe that is accepted, and says so in its settings", "[search]") {
  const std::string text = GENERATE(as<std::string>(), kDense, kMoe);
  const LoadRecipe load = reader(text);
  const SearchLimits limits = on(8, 4);
  const std::vector<Layout> all = layouts(load({}), limits);
  REQUIRE(all.size() > 500);
  for (size_t i = 0; i < all.size(); i += 61) {
    INFO(layout_text(all[i], load({})));
    const Recipe r = with(load, all[i], limits);
    CHECK(ranks(r) == 8);
    Recipe same = load({});
    set_layout(same, all[i]);
    CHECK(r.parallel.tensor == same.parallel.tensor);
    CHECK(r.parallel.data == same.parallel.data);
    if (text == kMoe) CHECK(r.parallel.expert_tensor == same.parallel.expert_tensor);
    CHECK(r.parallel.schedule == same.parallel.schedule);
    CHECK(r.parallel.zero_stage == same.parallel.zero_stage);
    CHECK(r.recompute.granularity == same.recompute.granularity);
    CHECK(r.recompute.modules == same.recompute.modules);
    CHECK(r.train.micro_batch_size == same.train.micro_batch_size);
  }
}

TEST_CASE("what a recipe sets stays in every layout of a search", "[search]") {
  const LoadRecipe load = reader(kDense, {"parallel.tensor=2", "parallel.zero_stage=1",
                                          "train.micro_batch_size=2", "recompute.granularity=full"});
  const std::vector<Layout> all = layouts(load({}), on(8));
  REQUIRE(!all.empty());
  for (const Layout& l : all) {
    CHECK(l.tensor == 2);
    CHECK(l.zero_stage == 1);
    CHECK(l.micro_batch == 2);
    CHECK(l.recompute == RecomputeGranularity::full);
    CHECK(l.precision == Precision::bf16);
  }
  SearchLimits least = on(8);
  least.max_tensor = 2;
  for (const Layout& l : layouts(reader(kDense)({}), least)) CHECK(l.tensor <= 2);
}

TEST_CASE("a bound knows how many ranks of a node share what ZeRO cuts, and a layer's whole gradients",
          "[search]") {
  LargeOn32 of;
  int in_node = 0;
  for (const Layout& l : layouts(of.recipe, of.limits)) {
    if (l.tensor != 4 || l.data != 4 || l.zero_stage != 3 || l.micro_batch != 1 || l.schedule != "1f1b" ||
        !l.sequence_parallel)
      continue;
    in_node += l.shard_group != kOneLevel;
    INFO(layout_text(l, of.recipe));
    const double bytes =
        static_cast<double>(of.parts.trial(l, std::numeric_limits<double>::infinity()).bytes);
    const double bound =
        std::max(of.parts.bound(l).bytes, of.parts.has_actions(l) ? of.parts.actions(l).bytes : 0);
    CHECK(bound <= bytes);
    CHECK(bound > 0.75 * bytes);
  }
  CHECK(in_node >= 3);
}

TEST_CASE("what reducing gradients takes from a pipeline's last micro-batch is known before a pass",
          "[search]") {
  LargeOn32 of;
  int seen = 0;
  for (const Layout& l : layouts(of.recipe, of.limits)) {
    if (l.tensor != 2 || l.pipeline != 2 || l.data != 8 || l.zero_stage != 1 || l.micro_batch != 1 ||
        !l.sequence_parallel || l.shard_group != kOneLevel || l.recompute != RecomputeGranularity::none ||
        (l.schedule != "1f1b" && l.schedule != "interleaved"))
      continue;
    INFO(layout_text(l, of.recipe));
    const double seconds = make_plan(with(of.load, l, of.limits), of.profile).action_seconds;
    CHECK(of.parts.begin_trial(l, (1 + 1e-9) * seconds)->size() > 0);
    CHECK(of.parts.begin_trial(l, 0.992 * seconds)->size() == 0);
    seen += of.parts.actions(l).step_seconds < 0.992 * seconds;  // which costs of layers alone do not say
  }
  CHECK(seen >= 3);
}

TEST_CASE("layouts are tried by the figures of their whole plans, which their bounds stay below",
          "[search]") {
  const auto [text, skew] =
      GENERATE(table<std::string, double>({{kDense, 1}, {kMoe, 1}, {kMoe, 2.5}, {kUneven, 1}}));
  const LoadRecipe load = reader(text);
  const Recipe recipe = load({});
  const SearchLimits limits = on(16);
  MachineProfile profile = find_profile("h100");
  profile.expert_skew = skew;
  SearchParts parts(recipe, profile, limits);
  const std::vector<Layout> all = layouts(recipe, limits);
  int pipelines = 0, budgets = 0;
  for (size_t i = 0; i < all.size(); i += all.size() / 90) {
    Layout l = all[i];
    if (l.expert > 1 && i % 2 == 1) l.row_budget = 1.25;
    budgets += l.row_budget > 0;
    INFO(layout_text(l, recipe));
    const Plan plan = make_plan(with(load, l, limits), profile);
    int64_t most = 0;
    for (const RankPlan& r : plan.ranks) most = std::max(most, r.total_bytes);
    const Trial trial = parts.trial(l, std::numeric_limits<double>::infinity());
    CHECK(trial.finished == fits(plan));
    if (!trial.finished) continue;
    CHECK(trial.bytes == most);
    CHECK(trial.step_seconds == Approx(plan.step_seconds()).epsilon(1e-12));
    const Bound bound = parts.bound(l);
    CHECK(bound.step_seconds <= plan.step_seconds());
    CHECK(bound.bytes <= static_cast<double>(most));
    CHECK(bound.bytes > 0.01 * static_cast<double>(most));
    CHECK_FALSE(parts.trial(l, 0.99 * plan.step_seconds()).finished);
    CHECK(parts.trial(l, (1 + 1e-9) * plan.step_seconds()).finished);
    if (!parts.has_actions(l)) continue;
    ++pipelines;
    CHECK(parts.begin_trial(l, (1 + 1e-9) * plan.action_seconds)->size() > 0);
    const Bound actions = parts.actions(l);
    CHECK(actions.step_seconds <= plan.step_seconds());
    CHECK(actions.bytes <= static_cast<double>(most));
    CHECK(parts.least_actions(l) <= plan.step_seconds());
    CHECK(parts.least_actions(l) > 0.2 * plan.step_seconds());
    // Costs of layers do not know waits for shards of each micro-batch, collectives behind those of
    // gradients, and sums of tensor ranks that no longer hide behind gradients of weights where backward is
    // split.
    if (l.zero_stage < 2) {
      CHECK(actions.step_seconds >= 0.85 * plan.action_seconds);
      const Trial slow = parts.trial(l, 0.8 * plan.action_seconds);
      // Ended before a pass was made, but with pairs, which only passes know.
      CHECK((slow.fits && !slow.finished && (slow.bytes == 0 || l.overlap != OverlapChoice::off)));
    }
  }
  CHECK(pipelines > 5);
  CHECK((budgets > 5) == (text != kDense));
  CHECK(parts.whole() == 0);
}

TEST_CASE("layouts of experts that do not fit are tried with a budget of rows", "[search]") {
  const std::vector<std::string> fixed{"parallel.tensor=1", "parallel.context=1",
                                       "parallel.sequence_parallel=false", "train.micro_batch_size=4",
                                       "recompute.granularity=none"};
  const LoadRecipe load = reader(kMoe, fixed);
  SearchLimits limits = on(4);
  limits.variants = false;
  limits.seconds = 1e6;
  const MachineProfile h100 = find_profile("h100");
  const auto bytes_of = [](const Plan& plan) {
    int64_t most = 0;
    for (const RankPlan& r : plan.ranks) most = std::max(most, r.total_bytes);
    return most;
  };
  const std::vector<Layout> all = layouts(load({}), limits);
  std::vector<int64_t> sizes;  // of layouts that budgets are for, without
  for (const Layout& l : all)
    if (l.expert > 1) sizes.push_back(bytes_of(make_plan(with(load, l, limits), h100)));
  std::sort(sizes.begin(), sizes.end());
  limits.keep_free = h100.device_bytes - sizes[sizes.size() / 10];
  std::vector<std::pair<double, int64_t>> plans;  // of each layout with the largest budget that fits
  std::map<double, int> with_budget;
  for (Layout l : all)
    for (const double budget : {0.0, 1.5, 1.25}) {
      if (budget > 0 && l.expert == 1) break;
      l.row_budget = budget;
      const Plan plan = make_plan(with(load, l, limits), h100);
      if (!fits_with(plan, limits.keep_free)) continue;
      plans.emplace_back(plan.step_seconds(), bytes_of(plan));
      ++with_budget[budget];
      break;
    }
  std::sort(plans.begin(), plans.end());
  CHECK(with_budget[0] > 0);
  CHECK(with_budget[1.5] > 0);
  CHECK(with_budget[1.25] > 0);
  const SearchResult s = search_layouts(load, h100, limits, plans.size());
  REQUIRE(s.found.size() == plans.size());
  CHECK(s.wrong_bounds == 0);
  std::map<double, int> found;
  for (size_t i = 0; i < plans.size(); ++i) {
    CHECK(s.found[i].plan.step_seconds() == plans[i].first);
    ++found[s.found[i].layout.row_budget];
    CHECK(s.found[i].largest().row_budget == s.found[i].layout.row_budget);
    if (s.found[i].layout.row_budget != 1.25) continue;
    const Setting budget{"model.moe.row_budget", "1.25"};
    CHECK(std::count(s.found[i].settings.begin(), s.found[i].settings.end(), budget) == 1);
    CHECK_THAT(layout_text(s.found[i].layout, load({})), Contains("row budget 1.25"));
  }
  CHECK(found == with_budget);
  CHECK_THAT(search_text(s, load({}), limits), Contains("row budget 1.5"));
  // What the recipe says of it stays.
  std::vector<std::string> none = fixed;
  none.emplace_back("model.moe.row_budget=null");
  for (const FoundLayout& f : search_layouts(reader(kMoe, none), h100, limits, 100).found)
    CHECK(f.layout.row_budget == 0);
}

TEST_CASE("the layouts that a search returns are the fastest of all whole plans", "[search]") {
  const bool moe = GENERATE(false, true);
  const LoadRecipe load =
      reader(moe ? kMoe : kDense, {"train.micro_batch_size=2", "parallel.sequence_parallel=false",
                                   std::string("recompute.granularity=") + (moe ? "none" : "full")});
  SearchLimits limits = on(4);
  limits.variants = false;
  limits.seconds = 1e6;
  const MachineProfile h100 = find_profile("h100");
  const int64_t keep = moe ? 0 : int64_t{71} << 30;
  limits.keep_free = keep;
  std::vector<std::pair<double, int64_t>> plans;  // seconds, bytes
  const std::vector<Layout> all = layouts(load({}), limits);
  for (const Layout& l : all) {
    const Plan plan = make_plan(with(load, l, limits), h100);
    if (!fits_with(plan, keep)) continue;
    int64_t most = 0;
    for (const RankPlan& r : plan.ranks) most = std::max(most, r.total_bytes);
    plans.emplace_back(plan.step_seconds(), most);
  }
  std::sort(plans.begin(), plans.end());
  const SearchResult s = search_layouts(load, h100, limits, 10);
  REQUIRE(plans.size() >= 10);
  if (keep > 0) CHECK(plans.size() < all.size());
  REQUIRE(s.found.size() == 10);
  CHECK(s.untried == 0);
  CHECK(s.wrong_bounds == 0);
  for (size_t i = 0; i < 10; ++i) {
    INFO(i << " of " << plans.size() << " that fit, " << all.size() << " in all, " << s.composed << " tried");
    CHECK(s.found[i].plan.step_seconds() == plans[i].first);
    CHECK(s.found[i].largest().total_bytes == plans[i].second);
  }
  CHECK(s.composed < static_cast<int64_t>(all.size()));
}

TEST_CASE("a search that may not try enough says how many layouts may be faster", "[search]") {
  const LoadRecipe load = reader(kDense);
  const SearchLimits limits = on(4);
  const SearchResult s = search_layouts(load, find_profile("h100"), limits, 10, 1);
  CHECK(s.untried > 0);
  CHECK_THAT(search_text(s, load({}), limits),
             Contains("not finished in ") && Contains(fmt::format(" s: {} more may be", s.untried)));
  SearchLimits short_of_time = limits;
  short_of_time.seconds = 0;
  short_of_time.variants = false;
  CHECK(search_layouts(load, find_profile("h100"), short_of_time).untried > 0);
}

TEST_CASE("a search over global batches finds the one with most tokens a second", "[search]") {
  const LoadRecipe load = reader(kDense, {"parallel.tensor=1", "parallel.context=1",
                                          "train.micro_batch_size=1", "recompute.granularity=none"});
  SearchLimits limits = on(4);
  limits.batch_low = 4, limits.batch_high = 32;
  limits.variants = false;
  const MachineProfile h100 = find_profile("h100");
  std::set<int64_t> batches;
  double most = 0;
  for (const Layout& l : layouts(load({}), limits)) {
    batches.insert(l.global_batch);
    const Plan plan = make_plan(with(load, l, limits), h100);
    if (fits(plan)) most = std::max(most, plan.tokens_per_second());
  }
  CHECK(batches == std::set<int64_t>{4, 8, 16, 32});
  const SearchResult s = search_layouts(load, h100, limits, 3);
  REQUIRE(s.found.size() == 3);
  CHECK(s.found[0].plan.tokens_per_second() == Approx(most).epsilon(1e-12));
}

TEST_CASE("a search returns what fits, fastest first, and what of it is smaller", "[search]") {
  const LoadRecipe load = reader(kDense);
  const SearchLimits limits = on(4);
  const SearchResult s = search_layouts(load, find_profile("h100"), limits, 5);
  REQUIRE(s.found.size() == 5);
  for (size_t i = 0; i < s.found.size(); ++i) {
    CHECK(fits(s.found[i].plan));
    if (i > 0) CHECK(s.found[i].plan.tokens_per_second() <= s.found[i - 1].plan.tokens_per_second());
    const Plan again = make_plan(with(load, s.found[i].layout, limits), find_profile("h100"));
    CHECK(again.step_seconds() == s.found[i].plan.step_seconds());
  }
  for (size_t i = 1; i < s.pareto.size(); ++i) {
    CHECK(s.pareto[i].largest().total_bytes < s.pareto[i - 1].largest().total_bytes);
    CHECK(s.pareto[i].plan.tokens_per_second() <= s.pareto[i - 1].plan.tokens_per_second());
  }
  const auto json = nlohmann::json::parse(search_json(s, load({}), limits));
  CHECK(json["found"].size() == 5);
  CHECK_THAT(search_text(s, load({}), limits),
             Contains("the fastest that fit") &&
                 Contains("tried of the fastest alone: the other parallel.order, ") &&
                 Contains(", parallel.overlap_micro_batches, offload.optimizer\n") &&
                 Contains("tried where nothing else fits: offload.params, offload.activations\n") &&
                 Contains("not tried: parallel.schedule: gpipe, "));
  const LoadRecipe fixed = reader(kDense, {"offload.params.device=none", "parallel.order=tp-cp-dp-pp"});
  CHECK_THAT(search_text(s, fixed({}), limits),
             Contains("tried of the fastest alone: parallel.tensor_mode ") &&
                 Contains("tried where nothing else fits: offload.activations\n"));
  CHECK_THAT(explain_text(s.found[0], s.found[1], load({})), Contains("memory of the worst rank"));
}

TEST_CASE("a search has no layout twice, by name and as recompute: auto chose it", "[search]") {
  const LoadRecipe load = reader(kDense, {"parallel.zero_stage=1", "parallel.pipeline=1"});
  const SearchResult s = search_layouts(load, find_profile("h100"), on(4), 10);
  REQUIRE(s.found.size() == 10);
  int alike = 0;
  for (const FoundLayout& a : s.found)
    for (const FoundLayout& b : s.found) {
      Layout as_b = a.layout;
      as_b.recompute = b.layout.recompute;
      if (&a == &b || !(as_b == b.layout)) continue;
      ++alike;
      CHECK(a.plan.step_seconds() != b.plan.step_seconds());
    }
  CHECK(alike > 0);
}

TEST_CASE("a search in which nothing fits says what takes least and how many ranks would do", "[search]") {
  const LoadRecipe load = reader(
      kDense, {"parallel.tensor=1", "parallel.pipeline=1", "parallel.context=1", "parallel.zero_stage=3",
               "parallel.shard_group=all", "train.micro_batch_size=1", "recompute.granularity=full"});
  SearchLimits limits = on(1);
  limits.variants = false;
  const MachineProfile h100 = find_profile("h100");
  const SearchResult there = search_layouts(load, h100, limits, 3);
  REQUIRE(there.found.size() == 1);
  limits.keep_free = h100.device_bytes - there.found[0].largest().total_bytes + 1;
  const SearchResult s = search_layouts(load, h100, limits, 3);
  CHECK(s.found.empty());
  REQUIRE(s.advice.smallest.size() == 1);
  CHECK(s.advice.fitting_world == 2);
  CHECK_THAT(search_text(s, load({}), limits), Contains("it fits on 2 ranks"));

  // With its optimizer state in host memory it fits on one.
  limits.variants = true;
  const SearchResult away = search_layouts(load, h100, limits, 3);
  REQUIRE(away.found.size() == 1);
  CHECK(away.found[0].layout.offload_optimizer);
  CHECK(away.variants >= 1);
  CHECK_THAT(layout_text(away.found[0].layout, load({})), Contains("optimizer state in host memory"));
  const Setting host{"offload.optimizer.device", "cpu"};
  const auto& settings = away.found[0].settings;
  CHECK(std::find(settings.begin(), settings.end(), host) != settings.end());
  // What the recipe says of it stays.
  const LoadRecipe fixed =
      reader(kDense, {"parallel.tensor=1", "parallel.pipeline=1", "parallel.context=1",
                      "parallel.zero_stage=3", "parallel.shard_group=all", "train.micro_batch_size=1",
                      "recompute.granularity=full", "offload.optimizer.device=none",
                      "offload.params.device=none", "offload.activations.device=none"});
  CHECK(search_layouts(fixed, h100, limits, 3).found.empty());
}

TEST_CASE("the smallest layout has the smallest micro-batch, also where that is 3 % of its bytes",
          "[search]") {
  const LoadRecipe load = reader(
      "name: large\ndevice: cuda\nprecision: bf16\n"
      "model: {architecture: llama, vocab_size: 32000, hidden_size: 8192, intermediate_size: 28672, "
      "num_hidden_layers: 40, num_attention_heads: 64, num_key_value_heads: 8, "
      "max_position_embeddings: 4096}\n"
      "data: {seq_length: 4096}\n"
      "train: {global_batch_size: 64, train_steps: 10}\n",
      {"parallel.tensor=2", "parallel.pipeline=1", "parallel.context=1", "recompute.granularity=full"});
  const SearchResult s = search_layouts(load, find_profile("v100"), on(2), 3);
  REQUIRE(s.found.empty());
  REQUIRE(s.advice.smallest.size() == 1);
  CHECK(s.advice.smallest[0].layout.micro_batch == 1);
}

TEST_CASE("the smallest layout of pipelines has the smallest micro-batch: stages keep several", "[search]") {
  const LoadRecipe load = reader(kLarge, {"parallel.tensor=1", "parallel.pipeline=4", "parallel.context=1",
                                          "recompute.granularity=full", "parallel.schedule=1f1b"});
  SearchLimits limits = on(8);
  limits.keep_free = int64_t{28} << 30;
  const SearchResult s = search_layouts(load, find_profile("v100"), limits, 3);
  REQUIRE(s.found.empty());
  REQUIRE(s.advice.smallest.size() == 1);
  CHECK(s.advice.smallest[0].layout.micro_batch == 1);
}

TEST_CASE("what does not fit in any way is refused with the memory and the speed of the cards", "[search]") {
  const Recipe r = resolve(reader(kDense, {"parallel.data=8"})({}), 8, 8);
  // This card has no bf16: it computes, and is priced, as fp32.
  Plan plan = job_of(r, find_profile("v100"));
  CHECK(plan.peak_flops == 15.7e12);
  plan.parameters = int64_t{1} << 40;
  plan.state_bytes = 18;
  plan.stages = 1;
  plan.ranks.resize(1);
  plan.ranks[0].model_flops = 1e18;
  CHECK_THAT(impossible_text(plan),
             Contains("8 cards of ") && Contains("at their peak of 15.7 TFLOP/s train at most "));
}

TEST_CASE("variants of a layout are recipes that are accepted, and what the recipe sets has none",
          "[search]") {
  const LoadRecipe load = reader(kDense);
  SearchLimits limits = on(16, 8);
  Layout l;
  l.tensor = 4, l.pipeline = 2, l.data = 2, l.micro_batch = 4, l.global_batch = 64;
  l.precision = Precision::bf16, l.recompute = RecomputeGranularity::full;
  std::set<std::string> kinds;
  for (const Layout& v : variants_of(l, load({}), limits)) {
    const Recipe r = with(load, v, limits);
    CHECK(r.parallel.order == v.order);
    CHECK(r.parallel.tensor_mode == v.tensor_mode);
    CHECK(r.offload.optimizer.on() == v.offload_optimizer);
    if (v.order != l.order) kinds.insert("order");
    if (v.tensor_mode != l.tensor_mode) kinds.insert("tensor");
    if (v.offload_optimizer) kinds.insert("offload");
    if (v.overlap != l.overlap || v.precision == Precision::fp8) kinds.insert("unasked");
  }
  CHECK(kinds == std::set<std::string>{"order", "tensor", "offload"});
  CHECK(with_chosen_recompute(l, load({}), limits).size() == 1);
  CHECK(with_offload(l, load({}), limits).size() == 1);
  const Recipe fixed = reader(kDense, {"parallel.order=tp-cp-dp-pp", "parallel.tensor_mode=1d",
                                       "recompute.granularity=full", "offload.optimizer.device=none"})({});
  CHECK(variants_of(l, fixed, limits).empty());
  CHECK(with_chosen_recompute(l, fixed, limits).empty());
  CHECK(with_offload(l, fixed, limits).empty());
}

TEST_CASE("a search tries micro-batches by turns where they are apart, and apart where they are by turns",
          "[search]") {
  const LoadRecipe load = reader(kDense);
  const SearchLimits limits = on(8);
  const MachineProfile h100 = find_profile("h100");
  Layout l;
  l.data = 8, l.zero_stage = 3, l.micro_batch = 1, l.global_batch = 64, l.precision = Precision::bf16;
  const auto other = [&](const Layout& of) {
    std::vector<Layout> found = variants_of(of, load({}), limits);
    std::erase_if(found, [&](const Layout& v) { return v.overlap == of.overlap; });
    return found;
  };
  REQUIRE(other(l).size() == 1);
  CHECK(other(l)[0].overlap == OverlapChoice::on);
  Layout t = l;
  t.tensor = 4, t.data = 2, t.zero_stage = 1;
  REQUIRE(other(t).size() == 1);
  CHECK(other(t)[0].overlap == OverlapChoice::off);
  const Recipe given = load({});
  SearchParts parts(given, h100, limits);
  for (const Layout& v : {other(l)[0], other(t)[0]}) {
    INFO(layout_text(v, load({})));
    const Recipe r = with(load, v, limits);
    CHECK(r.parallel.overlap_micro_batches == v.overlap);
    const Plan plan = make_plan(r, h100);
    const Trial trial = parts.trial(v, std::numeric_limits<double>::infinity());
    CHECK(trial.step_seconds == Approx(plan.step_seconds()).epsilon(1e-12));
    CHECK(parts.bound(v).step_seconds <= plan.step_seconds());
    CHECK(parts.bound(v).bytes <= static_cast<double>(trial.bytes));
  }
  // One micro-batch has no other to take turns with, stages have a schedule, and what the recipe says stays.
  Layout one = l;
  one.micro_batch = 8;
  CHECK(other(one).empty());
  Layout staged = l;
  staged.pipeline = 2, staged.data = 4;
  CHECK(other(staged).empty());
  const Recipe fixed = reader(kDense, {"parallel.overlap_micro_batches=auto"})({});
  for (const Layout& v : variants_of(l, fixed, limits)) CHECK(v.overlap == OverlapChoice::automatic);
}

TEST_CASE("a search of ZeRO-3 alone tries weights that stay gathered for a step", "[search]") {
  const LoadRecipe load = reader(kDense, {"parallel.zero_stage=3"});
  const SearchLimits limits = on(8);
  const MachineProfile h100 = find_profile("h100");
  const auto kept = [&](const Layout& of, const Recipe& recipe) {
    std::vector<Layout> found = variants_of(of, recipe, limits);
    std::erase_if(found, [&](const Layout& v) { return v.reshard == of.reshard; });
    return found;
  };
  Layout l;
  l.data = 8, l.zero_stage = 3, l.micro_batch = 1, l.global_batch = 64, l.precision = Precision::bf16;
  Layout tensor = l, staged = l, in_v = l;
  tensor.tensor = 4, tensor.data = 2;
  staged.pipeline = 4, staged.data = 2;
  in_v.pipeline = 2, in_v.data = 4, in_v.schedule = "zbv", in_v.virtual_pipeline = 2;
  const Recipe given = load({});
  SearchParts parts(given, h100, limits);
  for (const Layout& of : {l, tensor, staged, in_v}) {
    INFO(layout_text(of, load({})));
    const std::vector<Layout> found = kept(of, load({}));
    REQUIRE(found.size() == 1);
    const Layout& v = found[0];
    CHECK_THAT(layout_text(v, load({})), Contains("ZeRO 3 with weights gathered once a step"));
    const Recipe r = with(load, v, limits);
    CHECK(r.parallel.sharding().keeps_gathered());
    const Plan plan = make_plan(r, h100), again = make_plan(with(load, of, limits), h100);
    const Trial trial = parts.trial(v, std::numeric_limits<double>::infinity());
    CHECK(trial.step_seconds == Approx(plan.step_seconds()).epsilon(1e-9));
    CHECK(plan.step_seconds() < again.step_seconds());
    const auto tight = [&](const Bound& b) {
      CHECK(b.step_seconds <= plan.step_seconds());
      CHECK(b.bytes <= static_cast<double>(trial.bytes));
    };
    tight(parts.bound(v));
    if (v.pipeline > 1) tight(parts.actions(v));
    CHECK(parts.bound(v).bytes > parts.bound(of).bytes);
  }
  CHECK(kept(l, reader(kDense)({})).empty());  // ZeRO-2 is tried
  CHECK(
      kept(l, reader(kDense, {"parallel.zero_stage=3", "parallel.reshard_after_forward=true"})({})).empty());
}

TEST_CASE("a search tries FP8 where it is allowed and the recipe says no precision", "[search]") {
  std::string text = kDense;
  text.replace(text.find("precision: bf16\n"), 16, "");
  const LoadRecipe load = reader(text, {"parallel.tensor=1", "parallel.context=1", "train.micro_batch_size=4",
                                        "recompute.granularity=full"});
  SearchLimits limits = on(4);
  const MachineProfile h100 = find_profile("h100");
  const auto fp8 = [](const SearchResult& s) {
    return std::count_if(s.found.begin(), s.found.end(),
                         [](const FoundLayout& f) { return f.layout.precision == Precision::fp8; });
  };
  const SearchResult without = search_layouts(load, h100, limits, 5);
  CHECK(fp8(without) == 0);
  CHECK_THAT(search_text(without, load({}), limits), Contains("precision: fp8 (--allow-fp8) and fp16"));
  limits.allow_fp8 = true;
  const SearchResult with8 = search_layouts(load, h100, limits, 5);
  CHECK(fp8(with8) > 0);
  CHECK(with8.wrong_bounds == 0);
  REQUIRE(!with8.found.empty());
  CHECK(with8.found[0].plan.step_seconds() < without.found[0].plan.step_seconds());
  CHECK_THAT(search_text(with8, load({}), limits),
             Contains(", precision: fp8\n") && Contains("not tried: precision: fp16, "));
  // What the recipe sets stays.
  const LoadRecipe fixed = reader(kDense, {"parallel.tensor=1", "parallel.context=1",
                                           "train.micro_batch_size=4", "recompute.granularity=full"});
  CHECK(fp8(search_layouts(fixed, h100, limits, 5)) == 0);
}

TEST_CASE("where nothing else fits a search tries activations and weights in host memory", "[search]") {
  const std::vector<std::string> layout{"parallel.tensor=1",        "parallel.pipeline=1",
                                        "parallel.context=1",       "parallel.zero_stage=3",
                                        "parallel.shard_group=all", "train.micro_batch_size=1"};
  const LoadRecipe load = reader(kDense, layout);
  SearchLimits limits = on(1);
  const MachineProfile h100 = find_profile("h100");
  // Bytes of the smallest layout with these in host memory.
  const auto least = [&](std::vector<std::string> away) {
    int64_t bytes = std::numeric_limits<int64_t>::max();
    for (const char* recompute : {"none", "selective", "full"}) {
      std::vector<std::string> all = layout;
      all.insert(all.end(), away.begin(), away.end());
      all.push_back(std::string("recompute.granularity=") + recompute);
      if (std::string(recompute) == "selective") all.emplace_back("recompute.modules=[layernorm,mlp_act]");
      const Plan plan = make_plan(resolve(reader(kDense, all)({}), 1, 1), h100);
      bytes = std::min(bytes, plan.ranks[0].total_bytes);
    }
    return bytes;
  };
  const std::string optimizer = "offload.optimizer.device=cpu", weights = "offload.params.device=cpu",
                    activations = "offload.activations.device=cpu";
  const int64_t some = least({optimizer}), more = least({optimizer, activations, weights});
  REQUIRE(more < some);
  limits.keep_free = h100.device_bytes - (some - 1);
  const SearchResult s = search_layouts(load, h100, limits, 3);
  REQUIRE(!s.found.empty());
  CHECK(s.wrong_bounds == 0);
  for (const FoundLayout& f : s.found) {
    CHECK((f.layout.offload_activations || f.layout.offload_params));
    CHECK(f.largest().total_bytes < some);
    CHECK_THAT(layout_text(f.layout, load({})), Contains(" in host memory"));
  }
  limits.keep_free = h100.device_bytes - (more - 1);
  CHECK(search_layouts(load, h100, limits, 3).found.empty());
  // What the recipe says of it stays.
  limits.keep_free = h100.device_bytes - (some - 1);
  std::vector<std::string> none = layout;
  none.insert(none.end(), {"offload.params.device=none", "offload.activations.device=none"});
  CHECK(search_layouts(reader(kDense, none), h100, limits, 3).found.empty());
}
