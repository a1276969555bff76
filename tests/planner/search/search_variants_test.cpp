// plan --search: what is tried around the fastest layouts, and where nothing else fits.
#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "planner/search/search_parts.h"
#include "planner/search/variants.h"
#include "runtime/plan/make_plan.h"
#include "tests/planner/search/search_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("variants of a layout are recipes that are accepted, and what the recipe sets has none",
          "[search]") {
  const LoadRecipe load = reader(kDense);
  SearchLimits limits = on(16, 8);
  Layout l;
  l.tensor = 4, l.pipeline = 2, l.data = 2, l.micro_batch = 4, l.global_batch = 64;
  l.precision = Precision::bf16, l.recompute = RecomputeGranularity::full;
  std::set<std::string> kinds;
  for (const Layout& v : variants_of(l, VariantKind::refined, load({}), limits)) {
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
  CHECK(variants_of(l, VariantKind::chosen_recompute, load({}), limits).size() == 1);
  CHECK(variants_of(l, VariantKind::offload, load({}), limits).size() == 1);
  const Recipe fixed = reader(kDense, {"parallel.order=tp-cp-dp-pp", "parallel.tensor_mode=1d",
                                       "recompute.granularity=full", "offload.optimizer.device=none"})({});
  CHECK(variants_of(l, VariantKind::refined, fixed, limits).empty());
  CHECK(variants_of(l, VariantKind::chosen_recompute, fixed, limits).empty());
  CHECK(variants_of(l, VariantKind::offload, fixed, limits).empty());
}

TEST_CASE("a search tries micro-batches by turns where they are apart, and apart where they are by turns",
          "[search]") {
  const LoadRecipe load = reader(kDense);
  const SearchLimits limits = on(8);
  const MachineProfile h100 = find_profile("h100");
  Layout l;
  l.data = 8, l.zero_stage = 3, l.micro_batch = 1, l.global_batch = 64, l.precision = Precision::bf16;
  const auto other = [&](const Layout& of) {
    std::vector<Layout> found = variants_of(of, VariantKind::refined, load({}), limits);
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
  for (const Layout& v : variants_of(l, VariantKind::refined, fixed, limits))
    CHECK(v.overlap == OverlapChoice::automatic);
}

TEST_CASE("a search of ZeRO-3 alone tries weights that stay gathered for a step", "[search]") {
  const LoadRecipe load = reader(kDense, {"parallel.zero_stage=3"});
  const SearchLimits limits = on(8);
  const MachineProfile h100 = find_profile("h100");
  const auto kept = [&](const Layout& of, const Recipe& recipe) {
    std::vector<Layout> found = variants_of(of, VariantKind::refined, recipe, limits);
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
  // Values in the recipe stay.
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
  // Values in the recipe stay.
  limits.keep_free = h100.device_bytes - (some - 1);
  std::vector<std::string> none = layout;
  none.insert(none.end(), {"offload.params.device=none", "offload.activations.device=none"});
  CHECK(search_layouts(reader(kDense, none), h100, limits, 3).found.empty());
}
