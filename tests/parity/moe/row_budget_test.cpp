// A budget of the rows that come to a rank's experts: what is beyond it is computed all the same.
#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kExperts = 8, kTopK = 2, kSequence = 12, kHidden = 32, kLayers = 2, kSteps = 2;

TinyOptions budget_moe() {
  TinyOptions o = tiny_moe();
  o.moe.num_experts = kExperts;
  o.moe.top_k = kTopK;
  o.moe.balance = BalanceLoss::switch_loss;
  o.moe.balance_coeff = 0.1;
  o.micro_batch = 8;
  o.seq = kSequence;
  o.hidden = kHidden;
  o.layers = kLayers;
  o.steps = kSteps;
  return o;
}

/// Over the experts, its rows on the busiest rank in even shares.
double busiest(const std::vector<double>& chosen, int ranks) {
  const size_t local = chosen.size() / static_cast<size_t>(ranks);
  double most = 0;
  for (size_t i = 0; i < chosen.size(); i += local)
    most = std::max(most, total({chosen.begin() + static_cast<int64_t>(i),
                                 chosen.begin() + static_cast<int64_t>(i + local)}));
  return most * ranks / total(chosen);
}

struct BudgetLayout {
  const char* name;
  int data, expert;
  std::function<void(TinyOptions&)> more = {};
};

TinyOptions laid_out(const TinyOptions& one, const BudgetLayout& l) {
  TinyOptions o = one;
  o.ranks = l.data;
  o.expert = l.expert;
  o.micro_batch = one.micro_batch / l.data;
  if (l.more) l.more(o);
  return o;
}

const std::vector<BudgetLayout>& budget_layouts() {
  static const std::vector<BudgetLayout> all{
      {"expert 2", 2, 2},
      {"expert 4", 4, 4},
      {"expert 8", 8, 8},
      {"expert 2 of 4, ZeRO-3", 4, 2, [](TinyOptions& o) { o.zero_stage = 3; }},
      {"tensor 2, expert 2", 2, 2, [](TinyOptions& o) { o.tensor = 2; }},
      {"tensor 2 with sequence, expert 2", 2, 2,
       [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true; }},
      {"experts over tensor 2 and data 2", 2, 4,
       [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true, o.expert_tensor = false; }},
      {"experts over context 2 and data", 2, 4, [](TinyOptions& o) { o.context = 2; }},
      {"two levels of 2, expert 4", 4, 4, [](TinyOptions& o) { o.intra_node_experts = 2; }},
      {"in three parts, expert 2", 2, 2, [](TinyOptions& o) { o.dispatch.chunks = 3; }},
      {"in two parts, two levels, ZeRO-3", 4, 4,
       [](TinyOptions& o) { o.dispatch.chunks = 2, o.intra_node_experts = 2, o.zero_stage = 3; }},
      {"replicas of hot experts, expert 4", 4, 4, [](TinyOptions& o) { o.dispatch.replicas = 1; }}};
  return all;
}

}  // namespace

TEST_CASE("a budget of rows trains as one process does, also with all tokens to one rank", "[row_budget]") {
  TinyOptions one = budget_moe();
  one.moe.shared_experts = 1;
  const bool crowd = GENERATE(false, true);
  TinyHooks hooks;
  if (crowd) hooks.begin = crowded;
  const TinyResult base = train_tiny(one, {}, hooks);
  for (const BudgetLayout& l : budget_layouts()) {
    const TinyOptions free = laid_out(one, l);
    const TinyResult worst = train_tiny(free, {}, hooks);
    for (const double budget : {1.0, 1.5}) {
      INFO(l.name << ", budget " << budget << (crowd ? ", all tokens to one rank" : ""));
      TinyOptions many = free;
      many.dispatch.row_budget = budget;
      const TinyResult result = train_tiny(many, {}, hooks);
      require_parity(base, result, 1e-12);
      CHECK(result.plan_bytes == result.used_bytes);
      CHECK(result.plan_bytes[0] <=
            worst.plan_bytes[0]);  // in so small a model, another layer may have the peak
      if (budget == 1.0) CHECK(result.plan_bytes[0] < worst.plan_bytes[0]);
      const ExpertStatistics& s = result.experts.at(0);
      REQUIRE(s.beyond_slices.size() == static_cast<size_t>(kLayers));
      const double rows = total(s.kept[0]);
      CHECK(total(s.beyond_rows) >= 0);
      CHECK(s.beyond_rows[0] <= rows);
      if (crowd && many.dispatch.replicas == 0) {
        const double shares = busiest(s.chosen[0], l.expert);  // two of 8 ranks have one of the two experts
        CHECK(shares == Approx(std::min(l.expert, 4)));
        CHECK(s.beyond_slices[0] >=
              std::ceil(shares / budget) - 1);  // more where parts of a batch are uneven
        CHECK(s.beyond_rows[0] >= rows * (l.expert == 8 ? 2 : 1) * (shares - budget) / l.expert - 1e-9);
      }
      if (!crowd && budget == 1.0) CHECK(total(s.beyond_rows) > 0);  // some rank had more than its share
      CHECK(worst.experts.at(0).beyond_slices.empty());
    }
  }
}

TEST_CASE("a budget of rows in pipelines, with deferred gradients, a capacity, biases and one choice",
          "[row_budget]") {
  struct Case {
    const char* name;
    std::function<void(TinyOptions&)> model, layout;
  };
  const auto piped = [](const char* schedule, int chunks) {
    return [schedule, chunks](TinyOptions& o) {
      o.pipeline = 2, o.schedule = schedule, o.chunks = chunks, o.ranks = 2, o.expert = 2, o.micro_batch = 1;
    };
  };
  const auto over_two = [](TinyOptions& o) { o.ranks = o.expert = 2, o.micro_batch /= 2; };
  for (const Case& c :
       {Case{"zb-h1", [](TinyOptions& o) { o.micro_batch = 2, o.layers = 4; }, piped("zb-h1", 1)},
        {"zb-h1 with ZeRO-2", [](TinyOptions& o) { o.micro_batch = 2, o.layers = 4; },
         [&](TinyOptions& o) { piped("zb-h1", 1)(o), o.zero_stage = 2; }},
        {"interleaved", [](TinyOptions& o) { o.micro_batch = 2, o.layers = 4; }, piped("interleaved", 2)},
        {"a capacity", [](TinyOptions& o) { o.moe.capacity_factor = 3.0; }, over_two},
        {"biases of experts", [](TinyOptions& o) { o.architecture = "gpt_oss"; }, over_two},
        {"one choice", [](TinyOptions& o) { o.moe.top_k = 1; }, over_two}}) {
    INFO(c.name);
    TinyOptions one = budget_moe();
    c.model(one);
    TinyOptions many = one;
    c.layout(many);
    TinyOptions without = many;
    many.dispatch.row_budget = 1.0;
    const TinyResult result = train_tiny(many);
    // A capacity is of the tokens of a rank: the same layout without a budget is its reference.
    require_parity(train_tiny(one.moe.capacity_factor ? without : one), result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
    CHECK(total(result.experts.at(0).beyond_rows) > 0);
  }
}

TEST_CASE("a budget of rows: memory is planned whatever is between the gradients of a layer's experts",
          "[row_budget]") {
  // Each stack of experts is a bucket of its own, and ZeRO-2 and 3 have two sums under way: what is given
  // back for the second depends on whether the first has left.
  struct Case {
    const char* name;
    std::function<void(TinyOptions&)> set;
  };
  const auto predicts = [](TinyOptions& o) {
    o.architecture = "deepseek_v3", o.modules = 1, o.layers = 4;
    o.moe.num_experts = 4, o.moe.score = RouterScore::sigmoid, o.moe.dense_layers = {0};
    o.moe.balance = BalanceLoss::none, o.moe.z_loss_coeff = 0;
  };
  for (const Case& c :
       {Case{"multi-token prediction in a V",
             [&](TinyOptions& o) {
               predicts(o);
               o.ranks = 1, o.context = 2, o.context_comm = "a2a", o.zero_stage = 2, o.micro_batch = 4;
               o.pipeline = 2, o.schedule = "dualpipev", o.chunks = 2, o.global_batch = 16;
               o.seq = 16, o.vocab = 264, o.moe.intermediate_size = 64;
               o.moe.n_group = 2, o.moe.topk_group = 1, o.moe.bias_update_rate = 0.05;
             }},
        {"multi-token prediction in two parts",
         [&](TinyOptions& o) { predicts(o), o.zero_stage = 2, o.dispatch.chunks = 2; }},
        {"large experts, ZeRO-2", [](TinyOptions& o) { o.intermediate = 128, o.zero_stage = 2; }},
        {"large experts with biases, ZeRO-3",
         [](TinyOptions& o) { o.architecture = "gpt_oss", o.intermediate = 128, o.zero_stage = 3; }},
        {"gradients in bf16",
         [](TinyOptions& o) { o.precision = "bf16", o.bf16_gradients = true, o.intermediate = 128; }}}) {
    TinyOptions o = budget_moe();
    o.ranks = o.expert = 2, o.micro_batch = 2;
    c.set(o);
    for (const bool crowd : {false, true}) {
      INFO(c.name << (crowd ? ", all tokens to one rank" : ""));
      TinyHooks hooks;
      if (crowd) hooks.begin = equal_scores;
      TinyOptions many = o;
      many.dispatch.row_budget = 1.0;
      const TinyResult result = train_tiny(many, {}, hooks);
      CHECK(result.plan_bytes == result.used_bytes);
      CHECK(total(result.experts.at(0).beyond_rows) > 0);
      if (o.precision == "fp64") require_parity(train_tiny(o, {}, hooks), result, 1e-12);
    }
  }
}

TEST_CASE("a budget of rows beside micro-batches by turns: bits, memory and order as one after the other",
          "[row_budget][interleave]") {
  struct Case {
    const char* name;
    std::function<void(TinyOptions&)> set = {};
  };
  for (const Case& c :
       {Case{"expert 2"},
        {"expert 2, ZeRO-2", [](TinyOptions& o) { o.zero_stage = 2; }},
        {"expert 2 of 4, ZeRO-3", [](TinyOptions& o) { o.ranks = 4, o.zero_stage = 3, o.global_batch = 16; }},
        {"expert 4 in two parts",
         [](TinyOptions& o) { o.ranks = o.expert = 4, o.dispatch.chunks = 2, o.global_batch = 16; }},
        {"two levels of 2",
         [](TinyOptions& o) { o.ranks = o.expert = 4, o.intra_node_experts = 2, o.global_batch = 16; }},
        {"tensor 2 with sequence", [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true; }},
        {"pairs of a pipeline",
         [](TinyOptions& o) { o.pipeline = o.chunks = 2, o.schedule = "dualpipev", o.layers = 4; }},
        {"pairs of a pipeline, ZeRO-1",
         [](TinyOptions& o) {
           o.pipeline = o.chunks = 2, o.schedule = "dualpipev", o.layers = 4;
           o.zero_stage = 1, o.global_batch = 12;
         }},
        {"multi-token prediction, ZeRO-2", [](TinyOptions& o) {
           o.architecture = "deepseek_v3", o.modules = 1, o.zero_stage = 2;
           o.moe.num_experts = 4, o.moe.score = RouterScore::sigmoid;
         }}}) {
    TinyOptions o = budget_moe();
    o.ranks = o.expert = 2, o.micro_batch = 1, o.global_batch = 8;
    o.moe.shared_experts = 1;
    o.padded_targets = false;
    if (c.set) c.set(o);
    for (const double budget : {1.0, 1.5})
      for (const bool crowd : {false, true}) {
        INFO(c.name << ", budget " << budget << (crowd ? ", all tokens to one rank" : ""));
        TinyHooks hooks;
        if (crowd) hooks.begin = equal_scores;
        o.dispatch.row_budget = budget;
        const TinyResult one = train_tiny(o, {}, hooks);
        TinyOptions both = o;
        both.interleaved = true;
        const TinyResult turns = train_tiny(both, {}, hooks);
        check_same_bits(one, turns);
        CHECK(turns.plan_bytes == turns.used_bytes);
        CHECK(turns.experts.at(0).beyond_rows == one.experts.at(0).beyond_rows);
        if (crowd || budget == 1.0) CHECK(total(turns.experts.at(0).beyond_rows) > 0);
      }
  }
}

TEST_CASE("rows beyond a budget are counted, and travel once more than others", "[row_budget]") {
  TinyOptions one = budget_moe();
  one.ranks = one.expert = 2;
  one.micro_batch = 2;  // two micro-batches of a rank
  one.global_batch = 8;
  TinyHooks hooks;
  hooks.begin = crowded;
  const TinyResult free = train_tiny(one, {}, hooks);
  one.dispatch.row_budget = 1.0;
  const TinyResult result = train_tiny(one, {}, hooks);
  // Each rank's T tokens make T rows for expert 0 and T for expert 1: expert 0's are one even share, 2 T.
  const int64_t tokens = 2 * kSequence, micros = 2, steps = kSteps - 1;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    CHECK(result.experts[0].beyond_rows[layer] == static_cast<double>(2 * tokens * micros));
    CHECK(result.experts[0].beyond_slices[layer] == 1);
  }
  // The second rank, whose bytes these are, has T rows beyond.
  CHECK(result.used_groups.at("expert") - free.used_groups.at("expert") ==
        tokens * kHidden * 8 * kLayers * micros * steps);
  one.dispatch.row_budget = 2.0;  // all that can come: nothing is beyond
  const TinyResult wide = train_tiny(one, {}, hooks);
  CHECK(total(wide.experts[0].beyond_rows) == 0);
  CHECK(wide.used_groups.at("expert") == free.used_groups.at("expert"));
  CHECK(wide.plan_bytes == free.plan_bytes);
  check_same_bits(free, wide);
}
