// Experts' hidden units and activations that backward makes again.
#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions four_layer_moe() {
  TinyOptions o = tiny_moe();
  o.moe.balance = BalanceLoss::global;
  o.moe.balance_coeff = 0.1;
  o.micro_batch = 2;
  o.seq = 12;
  o.layers = 4;
  return o;
}

}  // namespace

TEST_CASE("experts that are computed again train as stored ones do, bit for bit, and count their tokens once",
          "[expert]") {
  for (const NamedLayout& l :
       {NamedLayout{"one rank", [](TinyOptions&) {}},
        {"expert 2", [](TinyOptions& o) { o.ranks = o.expert = 2; }},
        {"expert 2, tensor 2, ZeRO-3",
         [](TinyOptions& o) { o.ranks = o.expert = o.tensor = 2, o.zero_stage = 3; }},
        {"in two parts", [](TinyOptions& o) { o.ranks = o.expert = 2, o.dispatch.chunks = 2; }},
        {"gathered", [](TinyOptions& o) { o.ranks = o.expert = 2, o.dispatch.gather = true; }},
        {"a budget of rows", [](TinyOptions& o) { o.ranks = o.expert = 2, o.dispatch.row_budget = 1; }},
        {"zb-h1", [](TinyOptions& o) { o.ranks = o.expert = o.pipeline = 2, o.schedule = "zb-h1"; }},
        {"layers without experts, and some with copies", [](TinyOptions& o) {
           o.ranks = o.expert = 2, o.moe.dense_layers = {1}, o.dispatch.replicas = 1;
         }}}) {
    TinyOptions stored = four_layer_moe();
    l.set(stored);
    const TinyResult base = train_tiny(stored);
    int64_t bytes = base.plan_bytes[0];
    for (const BlockTensorSet& tensors : {set_of({BlockTensor::mlp_activation}),
                                          set_of({BlockTensor::mlp_hidden, BlockTensor::mlp_activation})}) {
      INFO(l.name << ", " << describe({0, -1, tensors}));
      TinyOptions again = stored;
      again.recompute.tensors = tensors;
      const TinyResult result = train_tiny(again);
      check_same_bits(base, result);
      CHECK(result.plan_bytes == result.used_bytes);
      CHECK(result.plan_bytes[0] < bytes);
      CHECK(result.plan_wire == base.plan_wire);
      CHECK(result.experts[0].chosen == base.experts[0].chosen);
      CHECK(result.experts[0].beyond_rows == base.experts[0].beyond_rows);
      CHECK(result.balance_losses == base.balance_losses);
      bytes = result.plan_bytes[0];
    }
  }
}

TEST_CASE(
    "whole layers with experts that are computed again train as stored ones do, bit for bit, and count once",
    "[expert]") {
  const auto by_turns = [](int zero, double budget) {
    return [=](TinyOptions& o) {
      o.ranks = o.expert = 2, o.zero_stage = zero, o.micro_batch = 1;
      o.dispatch.row_budget = budget, o.interleaved = true;
    };
  };
  const std::vector<NamedLayout> others{
      {"one rank", [](TinyOptions&) {}},
      {"a budget of rows by turns", by_turns(0, 1)},
      {"a budget of rows by turns, ZeRO-2", by_turns(2, 1)},
      {"a larger budget of rows by turns, ZeRO-2", by_turns(2, 1.5)},
      {"a budget of rows by turns, ZeRO-3", by_turns(3, 1)},
      {"zb-h1", [](TinyOptions& o) { o.ranks = o.expert = o.pipeline = 2, o.schedule = "zb-h1"; }},
      {"zbv with a budget of rows",
       [](TinyOptions& o) {
         o.ranks = o.expert = o.pipeline = o.chunks = 2, o.schedule = "zbv", o.micro_batch = 1;
         o.dispatch.row_budget = 1;
       }},
      {"layers without experts, and some with copies",
       [](TinyOptions& o) { o.ranks = o.expert = 2, o.moe.dense_layers = {1}, o.dispatch.replicas = 1; }},
      {"a bias, noise, a random second expert, a gated shared expert",
       [](TinyOptions& o) {
         o.ranks = o.expert = 2, o.moe.selection = Selection::gshard_top2;
         o.moe.jitter_eps = 0.1, o.moe.bias_update_rate = 0.05;
         o.moe.shared_experts = 1, o.moe.shared_expert_gate = true;
       }},
      {"transformers' loss over all layers",
       [](TinyOptions& o) { o.ranks = o.expert = 2, o.moe.balance = BalanceLoss::hf; }}};
  for (const NamedLayout& l : joined(expert_layouts(), others)) {
    TinyOptions stored = four_layer_moe();
    l.set(stored);
    const TinyResult base = train_tiny(stored);
    for (const int64_t run : {1, 2}) {
      INFO(l.name << ", runs of " << run);
      TinyOptions again = stored;
      again.recompute.run = run;
      const TinyResult result = train_tiny(again);
      check_same_bits(base, result);
      CHECK(result.plan_bytes == result.used_bytes);
      CHECK(result.plan_bytes[0] < base.plan_bytes[0]);
      for (size_t step = 0; step < result.experts.size(); ++step) {
        CHECK(result.experts[step].chosen == base.experts[step].chosen);
        CHECK(result.experts[step].kept == base.experts[step].kept);
        CHECK(result.experts[step].balance_loss == base.experts[step].balance_loss);
        CHECK(result.experts[step].z_loss == base.experts[step].z_loss);
        CHECK(result.experts[step].beyond_rows == base.experts[step].beyond_rows);
        CHECK(result.experts[step].beyond_slices == base.experts[step].beyond_slices);
      }
      CHECK(result.balance_losses == base.balance_losses);
    }
  }
}
