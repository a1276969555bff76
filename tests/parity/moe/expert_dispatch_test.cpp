// Ways of rows to experts and back that go together: parts of micro-batches from which experts choose, copies
// of experts that have biases, and rows that travel straight to the one expert of a rank.
#include <algorithm>

#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

void experts(TinyOptions& o, int ranks) { o.ranks = o.expert = ranks; }

double rows_beyond(const TinyResult& r) {
  double sum = 0;
  for (const double rows : r.experts.at(0).beyond_rows) sum += rows;
  return sum;
}

/// Passes over rows to bring them from one order into another, in the last step of the first rank.
int64_t passes(const std::vector<std::vector<std::string>>& ops) {
  return std::count_if(ops.at(0).begin(), ops.at(0).end(), [](const std::string& op) {
    return op.find("copy_rectangles") != std::string::npos && op.find("mlp") != std::string::npos;
  });
}

}  // namespace

TEST_CASE("experts choose from a whole micro-batch whose parts travel apart, also if the first has all",
          "[expert]") {
  TinyOptions one = tiny_moe_of_two();
  one.moe.selection = Selection::expert_choice;
  one.moe.norm_topk_prob = false;
  one.layers = 4;
  const bool first_tokens = GENERATE(false, true);
  TinyHooks hooks;
  if (first_tokens) hooks.begin = equal_scores;
  const TinyResult base = train_tiny(one, {}, hooks);
  for (const NamedLayout& l : std::vector<NamedLayout>{
           {"two parts, expert 2", [](TinyOptions& o) { experts(o, 2), o.dispatch.chunks = 2; }},
           {"three parts, expert 4, two levels",
            [](TinyOptions& o) { experts(o, 4), o.dispatch.chunks = 3, o.intra_node_experts = 2; }},
           {"three parts, experts over a ring",
            [](TinyOptions& o) { o.context = 2, o.expert = 2, o.dispatch.chunks = 3; }},
           {"two parts, experts of tensor ranks",
            [](TinyOptions& o) { experts_over_tensor(o), o.dispatch.chunks = 2; }},
           {"two parts, expert 2, tensor 2, ZeRO-3",
            [](TinyOptions& o) { experts(o, 2), o.tensor = 2, o.zero_stage = 3, o.dispatch.chunks = 2; }},
           {"two parts with a budget, expert 4",
            [](TinyOptions& o) { experts(o, 4), o.dispatch.chunks = 2, o.dispatch.row_budget = 1; }},
           {"two parts with copies, expert 2",
            [](TinyOptions& o) { experts(o, 2), o.dispatch.chunks = o.dispatch.replicas = 2; }},
           {"two parts, zb-h1",
            [](TinyOptions& o) {
              experts(o, 2), o.pipeline = 2, o.schedule = "zb-h1", o.dispatch.chunks = 2;
            }},
           {"two parts, interleaved, computed again", [](TinyOptions& o) {
              experts(o, 2), o.pipeline = 2, o.schedule = "interleaved", o.chunks = 2, o.dispatch.chunks = 2;
              o.recompute.run = 1;
            }}}) {
    INFO(l.name << (first_tokens ? ", equal scores" : ""));
    TinyOptions many = one;
    l.set(many);
    const TinyResult result = train_tiny(many, {}, hooks);
    require_parity(base, result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
    for (size_t step = 0; step < base.experts.size(); ++step)
      CHECK(base.experts[step].kept == result.experts[step].kept);
    if (many.dispatch.row_budget > 0) {
      if (first_tokens) CHECK(rows_beyond(result) > 0);
      many.dispatch.row_budget = 0;
      CHECK(result.plan_bytes[0] < train_tiny(many, {}, hooks).plan_bytes[0]);
    } else if (many.dispatch.replicas == 0 && many.context == 1 && many.expert_tensor &&
               many.recompute.run == 0) {
      const int64_t steps = one.steps - (first_tokens ? 1 : 0);  // ranks of the run, however uneven the parts
      CHECK(result.plan_groups.at("expert") * steps == result.used_groups.at("expert") * one.steps);
    }
  }
}

TEST_CASE("copies of experts that have biases train as one process does", "[expert]") {
  TinyOptions one = tiny_moe_of_two();
  one.architecture = "gpt_oss";
  one.moe.num_experts = 4;
  one.moe.intermediate_size = 8;  // few weights beside the rows
  one.micro_batch = 8;
  one.global_batch = 16;
  one.layers = 4;
  one.steps = 3;  // biases begin at zero
  const bool crowd = GENERATE(false, true);
  TinyHooks hooks;
  if (crowd) hooks.begin = equal_scores;
  const TinyResult base = train_tiny(one, {}, hooks);
  for (const NamedLayout& l : std::vector<NamedLayout>{
           {"expert 2", [](TinyOptions& o) { experts(o, 2); }},
           {"expert 4, ZeRO-2", [](TinyOptions& o) { experts(o, 4), o.zero_stage = 2; }},
           {"expert 2 of 4, ZeRO-3", [](TinyOptions& o) { o.ranks = 4, o.expert = 2, o.zero_stage = 3; }},
           {"expert 2, tensor 2", [](TinyOptions& o) { experts(o, 2), o.tensor = 2; }},
           {"expert 2, tensor 2 with sequence",
            [](TinyOptions& o) { experts(o, 2), o.tensor = 2, o.sequence_parallel = true; }},
           {"experts of tensor ranks", [](TinyOptions& o) { experts_over_tensor(o); }},
           {"gathered, experts of tensor ranks",
            [](TinyOptions& o) { experts_over_tensor(o), o.dispatch.gather = true; }},
           {"gathered, expert 2, tensor 2",
            [](TinyOptions& o) { experts(o, 2), o.tensor = 2, o.dispatch.gather = true; }},
           {"in parts, two levels",
            [](TinyOptions& o) { experts(o, 4), o.dispatch.chunks = 3, o.intra_node_experts = 2; }},
           {"a budget of rows", [](TinyOptions& o) { experts(o, 2), o.dispatch.row_budget = 1; }},
           {"zb-h1", [](TinyOptions& o) { experts(o, 2), o.pipeline = 2, o.schedule = "zb-h1"; }},
           {"computed again", [](TinyOptions& o) { experts(o, 2), o.recompute.run = 1; }}}) {
    INFO(l.name << (crowd ? ", all tokens to the first experts" : ""));
    TinyOptions many = one;
    l.set(many);
    many.micro_batch = one.micro_batch / many.ranks;
    const auto without = train_tiny(many, {}, hooks).used_groups;
    many.dispatch.replicas = 2;
    const TinyResult result = train_tiny(many, {}, hooks);
    require_parity(base, result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
    if (many.pipeline == 1) CHECK(result.used_groups.at("expert") != without.at("expert"));  // there are some
  }
}

TEST_CASE("copies of experts send the bytes of the plan where every expert has as many rows", "[expert]") {
  TinyOptions one = tiny_moe_of_two();
  one.moe.selection = Selection::expert_choice;  // even, whatever tokens there are
  one.moe.norm_topk_prob = false;
  one.moe.intermediate_size = 8;  // few weights beside the rows: each expert is worth a copy
  one.micro_batch = 8;
  one.global_batch = 32;
  const int copies = GENERATE(1, 3);
  for (const NamedLayout& l : std::vector<NamedLayout>{
           {"expert 2", [](TinyOptions& o) { experts(o, 2); }},
           {"expert 4, ZeRO-2", [](TinyOptions& o) { experts(o, 4), o.zero_stage = 2; }},
           {"expert 2 of 4, ZeRO-3", [](TinyOptions& o) { o.ranks = 4, o.expert = 2, o.zero_stage = 3; }},
           {"expert 2, tensor 2", [](TinyOptions& o) { experts(o, 2), o.tensor = 2; }},
           {"in parts, two levels",
            [](TinyOptions& o) { experts(o, 4), o.dispatch.chunks = 2, o.intra_node_experts = 2; }},
           {"gathered", [](TinyOptions& o) { experts(o, 2), o.dispatch.gather = true; }},
           {"a budget of rows", [](TinyOptions& o) { experts(o, 4), o.dispatch.row_budget = 1.5; }},
           {"computed again", [](TinyOptions& o) { experts(o, 2), o.recompute.run = 1; }}}) {
    TinyOptions many = one;
    l.set(many);
    many.dispatch.replicas = copies;
    INFO(l.name << ", " << copies << " copies");
    const TinyResult result = train_tiny(many);
    CHECK(result.plan_bytes == result.used_bytes);
    CHECK(result.plan_groups == result.used_groups);
    CHECK(result.plan_wire == result.used_wire);
    many.dispatch.replicas = 0;
    CHECK(result.used_groups.at("expert") != train_tiny(many).used_groups.at("expert"));  // there are some
  }
}

TEST_CASE("rows of a rank with one expert travel straight: fewer passes, with a budget of rows and without",
          "[expert]") {
  TinyOptions one = tiny_moe_of_two();
  one.precision = GENERATE("fp64", "bf16");
  one.timeline = true;
  one.micro_batch = 8;
  one.global_batch = 8;
  const TinyResult base = train_tiny(one);
  one.micro_batch = 1;
  experts(one, 8);
  for (const int near : {0, 2}) {
    INFO(one.precision << ", neighbours of " << near);
    TinyOptions o = one;
    o.intra_node_experts = near;
    const TinyResult whole = train_tiny(o);
    o.dispatch.row_budget = 3.9;
    const TinyResult roomy = train_tiny(o);
    CHECK(rows_beyond(roomy) == 0);
    check_same_bits(whole, roomy);
    CHECK(whole.used_groups == roomy.used_groups);
    o.dispatch.row_budget = 1;  // the memory that a slice travels to serves all
    const TinyResult tight = train_tiny(o);
    CHECK(rows_beyond(tight) > 0);
    if (o.precision == std::string("fp64")) require_parity(base, tight, 1e-12);
    CHECK(tight.plan_bytes[0] < roomy.plan_bytes[0]);
    const int64_t levels = near > 0 ? 2 : 0;  // beside the experts, those between the levels
    for (const TinyResult* r : {&whole, &roomy}) {
      CHECK(r->plan_bytes == r->used_bytes);
      CHECK(passes(r->plan_ops) == 4 * levels * o.layers);
      CHECK(passes(r->used_ops) == passes(r->plan_ops));
    }
    CHECK(tight.plan_bytes == tight.used_bytes);
    o.dispatch.row_budget = 0;
    experts(o, 4), o.micro_batch = 2;  // two experts a rank, whose rows are put in order
    CHECK(passes(train_tiny(o).plan_ops) == 4 * (levels + 1) * o.layers);
  }
}
