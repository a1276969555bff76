// The composition table is true: every cell that it calls supported trains like one rank, every cell that it
// refuses is refused with its reason.
#include <atomic>
#include <map>
#include <thread>

#include "base/error.h"
#include "planner/compositions/compositions.h"
#include "runtime/plan/make_plan.h"
#include "tests/parity/parity.h"
#include "tests/parity/recipe_job.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

struct Table {
  std::vector<CompositionFeature> features = composition_features();
  std::vector<CompositionCell> cells = compositions();
};

const Table& table() {
  static const Table t;
  return t;
}

}  // namespace

TEST_CASE("slow: every composition that the table calls supported trains like one rank", "[composition]") {
  std::map<std::string, TinyResult> alone;  // one rank, by what it trains
  int run = 0;
  for (const CompositionCell& c : table().cells) {
    if (c.state != CompositionCell::supported) continue;
    const Recipe r = composition_recipe(c.overrides);
    if (r.cuda_graphs == OverlapChoice::on) continue;  // GPU only: cuda/graph_test.cpp
    // fp32 is the table's default and stands for any: fp64 then.
    bool default_precision = true;
    for (const std::string& o : c.overrides) default_precision &= o.rfind("precision=", 0) != 0;
    std::string precision(to_string(r.precision));
    if (default_precision || precision == "fp8") precision = "fp64";  // also around products of FP8
    TinyOptions many = job_of(r, precision);
    const UpdateRule rule = many.optimizer.rule;
    const bool rounded = many.reduce_bf16 || many.reduce_code;
    const bool compressed_states = rule == UpdateRule::adamw8bit || is_onebit(rule);  // states of fp32
    if (many.precision == "fp64" && (rounded || compressed_states)) many.precision = "fp32";
    INFO(table().features[c.a].name << " and " << table().features[c.b].name);
    many.distinct_starts = many.moe.selection == Selection::expert_choice;
    const TinyOptions one = one_rank(many);
    const std::string key = fmt::format(
        "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
        one.architecture, one.precision, one.tied, one.fp8.has_value(), one.dropout, one.packed, one.kv_heads,
        one.moe.num_experts, one.moe.zero_experts, one.moe.capacity_factor.value_or(0),
        static_cast<int>(one.moe.selection), update_rule_name(one.optimizer.rule),
        one.optimizer.sparsity.on() + one.optimizer.sparsity.mask_interval +
            10 * static_cast<int>(one.optimizer.sparsity.gradient_estimator),
        one.optimizer.quantization.on(), one.ema_decay, one.micros, one.hidden, one.global_batch,
        one.z_loss_coeff, one.optimizer.frozen.size(), one.lora.rank,
        one.optimizer.diloco.sites * one.micro_batch, one.lora.dropout, one.lora.dora,
        one.lora.rank_pattern.size(), one.preference.has_value(),
        static_cast<int>(one.preference.value_or(PreferenceSettings()).kind), one.recompute.compressed.any(),
        one.offload.skip_untouched);
    if (!alone.count(key)) alone[key] = train_tiny(one);
    const TinyResult& base = alone[key];
    const TinyResult result = train_tiny(many);
    ++run;
    const bool wide = many.precision == "fp64" || (many.precision == "fp32" && !rounded && !many.fp8);
    const double exact = many.precision == "fp32" ? 2e-5 : many.fp8 ? 1e-11 : 1e-12;
    // Documents within a sample may still begin with the same token (TinyOptions::distinct_starts).
    const bool equal_tokens = many.packed && many.moe.selection == Selection::expert_choice;
    if (wide && (rule != UpdateRule::adamw || equal_tokens)) {
      // Up to the first update all is as exact, after which some have directions in the place of gradients;
      // what an optimizer makes of rounding has a test of its own.
      CHECK(result.losses[0] == Approx(base.losses[0]).epsilon(exact));
      CHECK(result.norms[0] == Approx(base.norms[0]).epsilon(10 * exact));
      for (size_t i = 1; i < base.losses.size(); ++i)
        CHECK(result.losses[i] == Approx(base.losses[i]).epsilon(0.01));
    } else if (wide) {
      require_parity(base, result, exact);
    } else {
      for (size_t i = 0; i < base.losses.size(); ++i)
        CHECK(result.losses[i] == Approx(base.losses[i]).epsilon(0.01));
    }
    if (many.micros > 0) continue;  // planned for the whole batch
    CHECK(result.plan_bytes == result.used_bytes);
    if (many.expert == 1) CHECK(result.plan_wire == result.used_wire);  // else it depends on where tokens go
  }
  CHECK(run > 100);
}

TEST_CASE("every composition that the table refuses is refused, with its reason and what would work",
          "[composition]") {
  int refused = 0;
  for (const CompositionCell& c : table().cells) {
    if (c.state != CompositionCell::refused) continue;
    ++refused;
    INFO(table().features[c.a].name << " and " << table().features[c.b].name);
    CHECK_FALSE(c.nearest.empty());
    std::string text;
    try {
      make_plan(composition_recipe(c.overrides), builtin_profile(2));
    } catch (const Error& e) {
      CHECK(e.code() == ExitCode::usage);
      text = e.what();
    }
    const std::string first = c.reason.substr(0, c.reason.find("; "));
    CHECK_THAT(text, Contains(first));
  }
  CHECK(refused > 0);
}

TEST_CASE("the table has one cell for each pair and says why", "[composition]") {
  const size_t n = table().features.size();
  CHECK(table().cells.size() == n * (n + 1) / 2);
  const auto find = [&](const std::string& a, const std::string& b) -> const CompositionCell& {
    for (const CompositionCell& c : table().cells)
      if (table().features[c.a].name == a && table().features[c.b].name == b) return c;
    throw std::runtime_error("no cell " + a + ", " + b);
  };
  CHECK(find("ZeRO-3", "tensor").state == CompositionCell::supported);
  CHECK(find("tensor", "pipeline, zb-h1").state == CompositionCell::supported);
  CHECK(find("ZeRO-1", "ZeRO-3").state == CompositionCell::exclusive);
  CHECK(find("expert", "expert").state == CompositionCell::supported);
  const std::string text = compositions_text(table().cells);
  CHECK_THAT(text, Contains("refused\n") && Contains("tensor, 2d and fp8: precision = fp8"));
}
