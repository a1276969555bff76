// plan --search: layers of ZeRO-2 in the memory that ZeRO-3 leaves.
#include <catch2/catch.hpp>
#include <limits>

#include "planner/search/search_parts.h"
#include "runtime/plan/make_plan.h"
#include "tests/planner/search/search_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

Layout mixed_layout() {
  Layout l;
  l.data = 8, l.zero_stage = 3, l.micro_batch = 1, l.global_batch = 64, l.precision = Precision::bf16;
  return l;
}

/// Data parallelism alone, of one micro-batch size.
LoadRecipe data_only(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"parallel.tensor=1", "parallel.pipeline=1", "parallel.context=1",
                           "train.micro_batch_size=1", "recompute.granularity=none",
                           "parallel.overlap_micro_batches=off", "offload.optimizer.device=none"});
  return reader(kDense, more);
}

}  // namespace

TEST_CASE("plans of ZeRO-3 with layers of ZeRO-2 are those of trials, and their bounds are below",
          "[search][zero_layers]") {
  const LoadRecipe load = reader(kDense);
  const SearchLimits limits = on(8);
  const MachineProfile h100 = find_profile("h100");
  const Layout l = mixed_layout();
  Layout tensor = l, staged = l, in_v = l;
  tensor.tensor = 4, tensor.data = 2;
  staged.pipeline = 2, staged.data = 4;
  in_v.pipeline = 2, in_v.data = 4, in_v.schedule = "zbv", in_v.virtual_pipeline = 2;
  const Recipe given = load({});
  SearchParts parts(given, h100, limits);
  for (const Layout& of : {l, tensor, staged, in_v}) {
    double before = std::numeric_limits<double>::infinity();
    for (const int64_t layers : {0, 1, 2}) {
      Layout v = of;
      v.zero_layers = layers;
      INFO(layout_text(v, given));
      const Plan plan = make_plan(with(load, v, limits), h100);
      const Trial trial = parts.trial(v, std::numeric_limits<double>::infinity());
      CHECK(trial.step_seconds == Approx(plan.step_seconds()).epsilon(1e-9));
      CHECK(plan.step_seconds() < before);
      before = plan.step_seconds();
      for (const Bound& b : {parts.bound(v), v.pipeline > 1 ? parts.actions(v) : Bound()}) {
        CHECK(b.step_seconds <= plan.step_seconds());
        CHECK(b.bytes <= static_cast<double>(trial.bytes));
      }
    }
  }
}

TEST_CASE("a search gives ZeRO-3 as many layers of ZeRO-2 as memory has room for, where ZeRO-2 does not fit",
          "[search][zero_layers]") {
  const LoadRecipe load = data_only();
  const MachineProfile h100 = find_profile("h100");
  SearchLimits limits = on(8);
  const Recipe given = load({});
  SearchParts parts(given, h100, limits);
  const auto trial = [&](int64_t stage, int64_t layers) {
    Layout l = mixed_layout();
    l.zero_stage = stage, l.zero_layers = layers;
    return parts.trial(l, std::numeric_limits<double>::infinity());
  };
  const Trial two = trial(2, 0), three = trial(3, 0);
  REQUIRE(two.bytes > three.bytes);
  REQUIRE(two.step_seconds < three.step_seconds);
  std::set<int64_t> seen;
  for (const double share : {0.3, 0.5, 0.95}) {
    INFO(share);
    const auto cap = static_cast<int64_t>(static_cast<double>(three.bytes) +
                                          share * static_cast<double>(two.bytes - three.bytes));
    limits.keep_free = h100.device_bytes - cap;
    const SearchResult s = search_layouts(load, h100, limits, 3);
    REQUIRE(!s.found.empty());
    const FoundLayout& first = s.found[0];
    INFO(layout_text(first.layout, given));
    REQUIRE(first.layout.zero_layers > 0);
    CHECK(first.layout.zero_stage == 3);
    CHECK(first.largest().total_bytes <= cap);
    CHECK(first.plan.step_seconds() < three.step_seconds);
    if (first.layout.zero_layers < 8) CHECK(trial(3, first.layout.zero_layers + 1).bytes > cap);
    CHECK_THAT(search_text(s, given, limits), Contains(" of ZeRO 2, micro-batch 1"));
    seen.insert(first.layout.zero_layers);
  }
  CHECK(seen.size() == 3);
}

TEST_CASE("a search has no layers of ZeRO-2 under ZeRO-3 where ZeRO-2 fits, or the recipe says how many",
          "[search][zero_layers]") {
  const MachineProfile h100 = find_profile("h100");
  const SearchLimits limits = on(8);
  const auto layers = [&](const LoadRecipe& load) {
    std::set<int64_t> out;
    for (const TriedLayout& t : search_layouts(load, h100, limits, 8).tried) out.insert(t.layout.zero_layers);
    return out;
  };
  CHECK(layers(data_only()) == std::set<int64_t>{0});
  CHECK(layers(data_only({"parallel.zero_stage=3", "parallel.zero_layers=0"})) == std::set<int64_t>{0});
  CHECK(layers(data_only({"parallel.zero_stage=3", "parallel.zero_layers=2"})) == std::set<int64_t>{2});
}

TEST_CASE("gathers of layers of ZeRO-2 do not delay the embedding's, which runs before them",
          "[search][zero_layers]") {
  const MachineProfile h100 = find_profile("h100");
  const LoadRecipe load =
      reader(kDense, {"model.vocab_size=128256", "model.hidden_size=4096", "model.intermediate_size=14336",
                      "model.num_hidden_layers=32", "model.num_attention_heads=32", "data.seq_length=4096"});
  const auto exposed = [&](int64_t layers) {
    Layout l = mixed_layout();
    l.zero_layers = layers;
    return make_plan(with(load, l, on(8)), h100).ranks.front().exposed_comm_seconds();
  };
  CHECK(exposed(17) < exposed(0));
}
