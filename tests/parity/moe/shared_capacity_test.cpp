// A capacity, and expert choice, take from the tokens of a micro-batch however its sequences are cut
// over ranks.
#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

void context(TinyOptions& o, const char* comm, int ranks = 2) { o.context = ranks, o.context_comm = comm; }

const std::vector<NamedLayout>& capacity_layouts() {
  static const std::vector<NamedLayout> all{
      {"a ring", [](TinyOptions& o) { context(o, "p2p"); }},
      {"a ring of 4, experts over it",
       [](TinyOptions& o) {
         context(o, "p2p", 4);
         o.expert = 4;
       }},
      {"gathered keys, experts over context and data, ZeRO-3",
       [](TinyOptions& o) {
         context(o, "all_gather");
         o.ranks = 2, o.expert = 4, o.zero_stage = 3;
       }},
      {"heads for sequence, experts over data",
       [](TinyOptions& o) {
         context(o, "a2a");
         o.ranks = 2, o.expert = 2, o.zero_stage = 1;
       }},
      {"a ring of groups", [](TinyOptions& o) { context(o, "a2a+p2p", 4); }},
      {"a ring, tensor with sequence",
       [](TinyOptions& o) {
         context(o, "p2p");
         o.tensor = 2, o.sequence_parallel = true, o.expert = 2;
       }},
      {"experts of tensor ranks", [](TinyOptions& o) { experts_over_tensor(o, 1); }},
      {"experts of tensor and data ranks, ZeRO-2",
       [](TinyOptions& o) {
         experts_over_tensor(o, 2);
         o.zero_stage = 2;
       }},
      {"experts of tensor ranks, a ring",
       [](TinyOptions& o) {
         context(o, "p2p");
         experts_over_tensor(o, 1);
       }},
      {"experts of tensor and context ranks, two levels",
       [](TinyOptions& o) {
         context(o, "all_gather");
         experts_over_tensor(o, 1);
         o.expert = 4, o.intra_node_experts = 2;
       }},
      {"gathered tokens, experts over a ring",
       [](TinyOptions& o) {
         context(o, "p2p");
         o.expert = 2, o.dispatch.gather = true;
       }},
      {"a budget of rows, experts over a ring",
       [](TinyOptions& o) {
         context(o, "p2p");
         o.expert = 2, o.dispatch.row_budget = 1;
       }},
      {"copies, experts over a ring",
       [](TinyOptions& o) {
         context(o, "p2p");
         o.expert = 2, o.dispatch.replicas = 1;
       }},
      {"zb-h1, a ring",
       [](TinyOptions& o) {
         context(o, "p2p");
         o.pipeline = 2, o.schedule = "zb-h1", o.expert = 2;
       }},
      {"by turns, gathered keys",
       [](TinyOptions& o) {
         context(o, "all_gather");
         o.interleaved = true;
       }},
      {"experts are computed again, experts of tensor ranks", [](TinyOptions& o) {
         experts_over_tensor(o, 1);
         o.recompute.run = 1;
       }}};
  return all;
}

void check_layouts(const TinyOptions& one, const TinyResult& base) {
  for (const NamedLayout& l : capacity_layouts()) {
    INFO(l.name);
    TinyOptions many = one;
    l.set(many);
    const TinyResult result = train_tiny(many);
    require_parity(base, result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
    for (size_t step = 0; step < base.experts.size(); ++step) {
      CHECK(base.experts[step].chosen == result.experts[step].chosen);
      CHECK(base.experts[step].kept == result.experts[step].kept);
    }
  }
}

}  // namespace

TEST_CASE("a capacity drops what one process drops, however sequences are cut", "[expert]") {
  TinyOptions one = tiny_moe_of_two();
  one.layers = 2;
  one.moe.drop_policy = GENERATE(Drop::least_weight, Drop::last_token, Drop::later_choice);
  one.moe.capacity_factor = 0.75;
  one.moe.eval_capacity_factor = 0.5;
  const TinyResult base = train_tiny(one);
  for (size_t layer = 0; layer < base.experts[0].kept.size(); ++layer)
    REQUIRE(total(base.experts[0].kept[layer]) < total(base.experts[0].chosen[layer]));
  check_layouts(one, base);
  TinyOptions other = one;  // negative control: of half of the tokens it drops others
  other.micro_batch = 1;
  CHECK(worst_relative(base.gradients, train_tiny(other).gradients) > 1e-6);
}

TEST_CASE("GShard's second experts, parts of a micro-batch and a capacity of cut sequences", "[expert]") {
  TinyOptions one = tiny_moe_of_two();
  one.moe.selection = Selection::gshard_top2;
  one.moe.second_threshold = 0.7;
  one.moe.drop_policy = Drop::later_choice;
  one.moe.capacity_factor = 0.75;
  const TinyResult base = train_tiny(one);
  check_layouts(one, base);
  TinyOptions parts = one;
  context(parts, "p2p");
  parts.expert = 2, parts.dispatch.chunks = 3;
  const TinyResult result = train_tiny(parts);
  require_parity(base, result, 1e-12);
  CHECK(result.plan_bytes == result.used_bytes);
}

TEST_CASE("experts choose what they choose in one process, however sequences are cut", "[expert]") {
  TinyOptions one = tiny_moe_of_two();
  one.moe.selection = Selection::expert_choice;
  one.moe.norm_topk_prob = false;
  const TinyResult base = train_tiny(one);
  check_layouts(one, base);
  TinyOptions other = one;
  other.micro_batch = 1;
  CHECK(worst_relative(base.gradients, train_tiny(other).gradients) > 1e-6);
}

TEST_CASE("a capacity of cut sequences plans memory for what it lets through", "[expert]") {
  TinyOptions one = tiny_moe_of_two();
  context(one, "p2p");
  one.expert = 2;
  const std::vector<int64_t> all = train_tiny(one).plan_bytes;
  one.moe.capacity_factor = 0.5;
  const TinyResult few = train_tiny(one);
  CHECK(few.plan_bytes == few.used_bytes);
  CHECK(few.plan_bytes[0] < all[0]);
}
