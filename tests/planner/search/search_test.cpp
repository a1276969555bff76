// plan --search: layouts that the recipe's rules allow, what is composed against whole plans, what fits.
#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <set>

#include "base/json/json.h"
#include "planner/search/search_parts.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "tests/planner/search/search_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

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
    seen += of.parts.actions(l).step_seconds < 0.992 * seconds;  // unknown from costs of layers alone
  }
  CHECK(seen >= 3);
}

TEST_CASE("a bound knows that gradients are reduced after the last micro-batch", "[search]") {
  LargeOn32 of;
  MachineProfile slow = of.profile;
  for (NetworkLevel& level : slow.levels) level.bytes_per_second.value /= 16;
  SearchParts parts(of.recipe, slow, of.limits);
  int seen = 0;
  for (const Layout& l : layouts(of.recipe, of.limits)) {
    if (l.tensor != 1 || l.pipeline != 4 || l.data != 8 || l.zero_stage != 1 || l.micro_batch != 1 ||
        l.shard_group != kOneLevel || l.recompute != RecomputeGranularity::full || l.context > 1 ||
        l.schedule != "1f1b")
      continue;
    INFO(layout_text(l, of.recipe));
    const Plan plan = make_plan(with(of.load, l, of.limits), slow);
    const double bound = parts.actions(l).step_seconds;
    CHECK(bound <= plan.step_seconds());
    CHECK(bound > 0.9 * plan.step_seconds());
    CHECK(plan.action_seconds < 0.9 * plan.step_seconds());  // the rest is the reduction
    ++seen;
  }
  CHECK(seen > 0);
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
  std::vector<int64_t> sizes;  // layouts that take budgets, without one
  for (const Layout& l : all)
    if (l.expert > 1) sizes.push_back(bytes_of(make_plan(with(load, l, limits), h100)));
  std::sort(sizes.begin(), sizes.end());
  limits.keep_free = h100.device_bytes - sizes[sizes.size() / 10];
  std::vector<std::pair<double, int64_t>> plans;  // each layout with the largest budget that fits
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
    CHECK(s.found[i].plan.step_seconds() == Approx(plans[i].first).epsilon(1e-9));
    ++found[s.found[i].layout.row_budget];
    CHECK(s.found[i].largest().row_budget == s.found[i].layout.row_budget);
    if (s.found[i].layout.row_budget != 1.25) continue;
    const Setting budget{"model.moe.row_budget", "1.25"};
    CHECK(std::count(s.found[i].settings.begin(), s.found[i].settings.end(), budget) == 1);
    CHECK_THAT(layout_text(s.found[i].layout, load({})), Contains("row budget 1.25"));
  }
  CHECK(found == with_budget);
  CHECK_THAT(search_text(s, load({}), limits), Contains("row budget 1.5"));
  // Values in the recipe stay.
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
    CHECK(s.found[i].plan.step_seconds() == Approx(plans[i].first).epsilon(1e-9));
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
             Contains(fmt::format(", and {} that may be faster, since ", s.untried)) &&
                 Contains("--seconds looks longer"));
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
  // auto is what a search decides: the state stays where it fits, and leaves where it does not.
  const std::vector<std::string> layout{"parallel.tensor=1",         "parallel.pipeline=1",
                                        "parallel.context=1",        "parallel.zero_stage=3",
                                        "parallel.shard_group=all",  "train.micro_batch_size=1",
                                        "recompute.granularity=full"};
  std::vector<std::string> automatic = layout;
  automatic.push_back("offload.optimizer.device=auto");
  const LoadRecipe open = reader(kDense, automatic);
  const SearchResult chosen = search_layouts(open, h100, limits, 3);
  REQUIRE(chosen.found.size() == 1);
  CHECK(chosen.found[0].layout.offload_optimizer);
  SearchLimits roomy = limits;
  roomy.keep_free = 0;
  const SearchResult all = search_layouts(open, h100, roomy, 3);
  REQUIRE(!all.found.empty());
  CHECK_FALSE(all.found[0].layout.offload_optimizer);
  const Setting stays{"offload.optimizer.device", "none"};
  CHECK(std::ranges::count(all.found[0].settings, stays) == 1);
  // Values in the recipe stay.
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

TEST_CASE("of layouts that are about as fast a search puts the one of least memory first", "[search]") {
  const LoadRecipe load = reader(kDense);
  SearchLimits limits = on(4);
  const SearchResult by_speed = search_layouts(load, find_profile("h100"), limits, 5);
  const auto speed = [](const FoundLayout& f) { return f.tokens_per_second_per_rank(); };
  const auto bytes = [](const FoundLayout& f) { return f.largest().total_bytes; };
  REQUIRE(by_speed.found.size() == 5);
  // The second and third differ from the first by this much, so that the range of near-ties is known.
  limits.tie = 1 - 0.999 * speed(by_speed.found[2]) / speed(by_speed.found[0]);
  const SearchResult tied = search_layouts(load, find_profile("h100"), limits, 5);
  REQUIRE(tied.found.size() == 5);
  size_t equal = 0;
  int64_t least = INT64_MAX;
  for (const FoundLayout& f : by_speed.found)
    if (speed(f) >= (1 - limits.tie) * speed(by_speed.found[0])) ++equal, least = std::min(least, bytes(f));
  REQUIRE(equal >= 3);
  CHECK(bytes(tied.found[0]) == least);
  for (size_t i = 1; i < equal; ++i) CHECK(bytes(tied.found[i - 1]) <= bytes(tied.found[i]));
  for (size_t i = equal + 1; i < 5; ++i) CHECK(speed(tied.found[i - 1]) >= speed(tied.found[i]));
  CHECK_THAT(search_text(tied, load({}), limits), Contains("of the fastest the smallest come first"));
}

TEST_CASE("a search accounts for every layout that may fit: tried, slower, or not tried", "[search]") {
  const LoadRecipe load = reader(kDense);
  SearchLimits limits = on(4);
  limits.variants = false;
  for (const int64_t most_trials : {int64_t{16}, int64_t{1000}}) {
    const SearchResult s = search_layouts(load, find_profile("h100"), limits, 3, most_trials);
    INFO(most_trials);
    CHECK(s.composed + s.whole + s.slower + s.untried == s.may_fit);
    if (most_trials == 1000) CHECK(s.untried == 0);
    CHECK_THAT(search_text(s, load({}), limits),
               Contains(fmt::format("passed over: {} whose memory cannot fit, {} that cannot be faster",
                                    s.allowed - s.may_fit, s.slower)));
  }
}

TEST_CASE("a search tells how far it is", "[search]") {
  const LoadRecipe load = reader(kDense);
  SearchLimits limits = on(4);
  std::vector<std::pair<int64_t, int64_t>> told;
  limits.progress = [&](int64_t tried, int64_t open) { told.emplace_back(tried, open); };
  search_layouts(load, find_profile("h100"), limits, 3);
  REQUIRE(told.size() >= 2);
  CHECK(told.front().first == 0);
  for (size_t i = 1; i < told.size(); ++i) CHECK(told[i].first >= told[i - 1].first);
  CHECK(told.back().second <= told.front().second);
}
