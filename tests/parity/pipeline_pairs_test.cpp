// A pipeline's forward beside another micro-batch's backward: the bits of one after the other, in the planned
// memory, traffic and order.
#include <algorithm>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions in_a_v() {
  TinyOptions o;
  o.layers = 5;
  o.global_batch = 6;
  o.padded_targets = true;
  o.pipeline = o.chunks = 2, o.schedule = "dualpipev";
  return o;
}

TinyOptions experts_in_a_v() {
  TinyOptions o = in_a_v();
  o.architecture = "mixtral", o.layers = 4;
  o.moe.num_experts = 4, o.moe.top_k = 2, o.moe.balance = BalanceLoss::switch_loss;
  o.ranks = o.expert = 2, o.global_batch = 12;
  return o;
}

/// Calls check(name, options) for jobs whose forwards and backwards wait for collectives.
template <class F>
void each_paired_job(F check) {
  for (const bool sequence : {false, true})
    for (const bool tied : {false, true}) {
      TinyOptions o = in_a_v();
      o.dropout = 0.1, o.tied = tied, o.untied = !tied;
      o.architecture = tied ? "gpt2" : "llama";
      o.tensor = 2, o.sequence_parallel = sequence;
      check(fmt::format("tensor 2{}{}", sequence ? ", sequence" : "", tied ? ", tied" : ""), o);
    }
  for (const int zero : {1, 2, 3}) {
    TinyOptions o = in_a_v();
    o.tensor = o.ranks = 2, o.zero_stage = zero, o.global_batch = 12;
    check(fmt::format("tensor 2, ZeRO {}", zero), o);
  }
  TinyOptions o = in_a_v();
  o.pipeline = 3, o.tensor = 2, o.layers = 7, o.global_batch = 8;
  check("three ranks", o);
  o = in_a_v();
  o.context = 2, o.context_comm = "a2a", o.kv_heads = 2;
  check("context", o);
  o = in_a_v();
  o.tensor = 2, o.sequence_parallel = true, o.recompute.run = 1;
  check("layers computed again", o);
  o = in_a_v();
  o.tensor = 2, o.precision = "fp32", o.fp8.emplace();
  check("fp8", o);
  for (const int chunks : {1, 2}) {
    o = experts_in_a_v();
    o.dispatch.chunks = chunks;
    check(fmt::format("experts in {} parts", chunks), o);
    o.tensor = 2, o.sequence_parallel = true, o.zero_stage = 1;
    check(fmt::format("experts in {} parts, tensor, ZeRO 1", chunks), o);
  }
  o = experts_in_a_v();
  o.architecture = "deepseek_v3", o.modules = 1, o.layers = 5, o.tied = true;
  o.moe.score = RouterScore::sigmoid, o.moe.dense_layers = {0}, o.moe.shared_experts = 1;
  o.moe.balance = BalanceLoss::none, o.moe.z_loss_coeff = 0, o.moe.bias_update_rate = 0.05;
  check("experts, multi-token prediction, tied", o);
}

/// How often the layer of the compute stream's work changes.
int turns(const std::vector<std::string>& ops) {
  int n = 0;
  std::string last;
  for (const std::string& op : ops) {
    if (!op.starts_with("compute: ")) continue;
    const std::string layer = op.substr(9, op.find(": ", 9) - 9);
    n += layer != last;
    last = layer;
  }
  return n;
}

}  // namespace

TEST_CASE("pairs of a pipeline give the bits of one action after the other, in the planned memory and order",
          "[interleave][pipeline]") {
  each_paired_job([](const std::string& name, TinyOptions o) {
    INFO(name);
    o.timeline = !o.fp8;
    const TinyResult apart = train_tiny(o);
    o.interleaved = true;
    const TinyResult both = train_tiny(o);
    check_same_bits(apart, both);
    CHECK(both.plan_bytes == both.used_bytes);
    CHECK(both.used_groups == apart.used_groups);
    if (o.moe.num_experts == 0) CHECK(both.plan_wire == both.used_wire);  // else planned for even routing
    for (size_t rank = 0; o.timeline && rank < both.plan_ops.size(); ++rank) {
      CHECK(op_difference(both.plan_ops[rank], both.used_ops[rank]) == "");
      CHECK(turns(both.used_ops[rank]) > turns(apart.used_ops[rank]));
    }
  });
}

TEST_CASE("pairs of a pipeline equal one process", "[interleave][pipeline]") {
  each_paired_job([](const std::string& name, TinyOptions o) {
    if (o.fp8) return;
    INFO(name);
    TinyOptions one = o;
    one.pipeline = one.chunks = one.tensor = one.context = one.ranks = one.expert = 1;
    one.sequence_parallel = false, one.zero_stage = 0, one.schedule = "1f1b", one.dispatch = {},
    one.recompute = {};
    if (o.moe.num_experts > 0) one.micro_batch = 2;  // whose tokens the ranks of experts balance together
    o.interleaved = true;
    require_parity(train_tiny(one), train_tiny(o), 1e-12);
  });
}

TEST_CASE("a short step of a pipeline runs what is left of its pairs", "[interleave][pipeline]") {
  for (const int64_t micros : {1, 2, 3, 5}) {
    TinyOptions o = in_a_v();
    o.tensor = 2, o.micros = micros;
    INFO(micros << " of 6");
    const TinyResult apart = train_tiny(o);
    o.interleaved = true;
    const TinyResult both = train_tiny(o);
    check_same_bits(apart, both);
    CHECK(both.used_bytes[0] <= both.plan_bytes[0]);
  }
}
