// ZeRO-3 with some layers of ZeRO-2 (parallel.zero_layers): the bits of either stage alone, memory and bytes
// sent between those of the two.
#include <algorithm>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions job() {
  TinyOptions o;
  o.ranks = 2, o.zero_stage = 3;
  o.global_batch = 8;
  o.layers = 4;
  o.bucket_elements = 2000;
  o.padded_targets = true;
  return o;
}

struct ThreeWays {
  TinyResult two, mixed, three;  ///< ZeRO-2, both, ZeRO-3
};

/// Trains under each stage and under both; checks that the bits are the same and the plan exact.
ThreeWays three_ways(TinyOptions o, int layers) {
  ThreeWays all;
  all.three = train_tiny(o);
  o.zero_layers = layers;
  all.mixed = train_tiny(o);
  o.zero_layers = 0, o.zero_stage = 2;
  if (o.offload.params == 0) all.two = train_tiny(o);
  check_same_bits(all.three, all.mixed);
  CHECK(all.three.averages == all.mixed.averages);
  if (o.offload.params == 0) check_same_bits(all.two, all.mixed);
  CHECK(all.mixed.plan_bytes == all.mixed.used_bytes);
  CHECK(all.mixed.plan_offloaded == all.mixed.used_offloaded);
  if (o.expert == 1) CHECK(all.mixed.plan_wire == all.mixed.used_wire);  // else it depends on where tokens go
  return all;
}

}  // namespace

TEST_CASE("layers of ZeRO-2 under ZeRO-3 give the bits of either stage alone", "[zero_layers]") {
  const auto check = [](const char* name, auto change) {
    INFO(name);
    TinyOptions o = job();
    o.precision = "fp32";
    change(o);
    const ThreeWays all = three_ways(o, 1);
    CHECK(all.mixed.used_wire[0] < all.three.used_wire[0]);
    CHECK(all.mixed.used_bytes[0] != all.three.used_bytes[0]);
    if (o.offload.params == 0) CHECK(all.two.used_wire[0] < all.mixed.used_wire[0]);
  };
  check("fp64", [](TinyOptions& o) { o.precision = "fp64"; });
  check("bf16", [](TinyOptions& o) { o.precision = "bf16", o.ema_decay = 0.9; });
  check("bf16 without master weights",
        [](TinyOptions& o) { o.precision = "bf16", o.master_weights = false; });
  check("one micro-batch", [](TinyOptions& o) { o.global_batch = 2, o.dropout = 0.1; });
  check("two levels", [](TinyOptions& o) { o.ranks = 4, o.shard = 2; });
  check("a tied table", [](TinyOptions& o) { o.tied = true; });
  check("tensor, by turns", [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = o.interleaved = true; });
  check("2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2; });
  check("context", [](TinyOptions& o) { o.context = 2, o.kv_heads = 2; });
  check("1f1b", [](TinyOptions& o) { o.pipeline = 2, o.tied = true; });
  check("zbv", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zbv", o.chunks = 2, o.layers = 8; });
  check("interleaved",
        [](TinyOptions& o) { o.pipeline = 2, o.schedule = "interleaved", o.chunks = 2, o.layers = 8; });
  check("dualpipev",
        [](TinyOptions& o) { o.pipeline = 2, o.schedule = "dualpipev", o.chunks = 2, o.layers = 8; });
  check("recomputed", [](TinyOptions& o) { o.recompute.run = 2, o.architecture = "gpt2"; });
  check("experts", [](TinyOptions& o) { o.architecture = "mixtral", o.moe.num_experts = 4, o.expert = 2; });
  check("a token more", [](TinyOptions& o) { o.architecture = "deepseek_v3", o.modules = 1; });
  for (const auto estimator : {HessianEstimator::hutchinson, HessianEstimator::gauss_newton})
    check("sophia", [&](TinyOptions& o) {
      o.optimizer.rule = UpdateRule::sophia, o.optimizer.hessian_interval = 2;
      o.optimizer.hessian_estimator = estimator;
    });
  check("muon", [](TinyOptions& o) { o.optimizer.rule = UpdateRule::muon; });
  check("states offloaded", [](TinyOptions& o) { o.offload.fraction = 1, o.offload.window = 160; });
  check("weights of the others offloaded",
        [](TinyOptions& o) { o.offload.fraction = o.offload.params = 1, o.offload.window = 160; });
  check("fp8", [](TinyOptions& o) { o.fp8.emplace(); });
}

TEST_CASE("layers of ZeRO-2 under ZeRO-3 equal one process under every layout", "[zero_layers]") {
  each_layout(job(), [](const std::string& name, TinyOptions o) {
    INFO(name);
    TinyOptions one = o;
    one.ranks = one.tensor = one.pipeline = one.context = 1, one.chunks = 1, one.tensor_mode = "1d";
    one.schedule = "1f1b", one.zero_stage = 0, one.sequence_parallel = false;
    if (o.ranks == 1) o.ranks = 2;
    if (o.ranks * o.micro_batch > o.global_batch || tiny_world(o) > 8) return;
    o.zero_stage = 3, o.zero_layers = 1;
    const TinyResult mixed = train_tiny(o);
    require_parity(train_tiny(one), mixed, 1e-12);
    CHECK(mixed.plan_bytes == mixed.used_bytes);
    CHECK(mixed.plan_wire == mixed.used_wire);
  });
}

TEST_CASE("each layer of ZeRO-2 adds its weights to what a rank keeps, and is gathered once a step",
          "[zero_layers]") {
  TinyOptions o = job();
  o.timeline = true;
  const auto gathers = [](const TinyResult& r) {
    return std::count_if(r.used_ops[0].begin(), r.used_ops[0].end(), [](const std::string& op) {
      return op.starts_with("comm: ") && op.ends_with("all_gather");
    });
  };
  std::vector<int64_t> all, kept;
  for (int layers = 0; layers <= 4; ++layers) {
    o.zero_layers = layers;
    const TinyResult r = train_tiny(o);
    for (size_t rank : {0, 1}) CHECK(op_difference(r.plan_ops[rank], r.used_ops[rank]) == "");
    all.push_back(gathers(r));
    MetaJob planned(o, 0);
    const int64_t before = planned.memory.live_bytes();
    planned.program.train_step({}, tiny_adamw(1));
    const HostBatch any;
    bool more = true;
    planned.program.evaluate([&] { return std::exchange(more, false) ? &any : nullptr; });
    CHECK(planned.memory.live_bytes() == before);  // gathered weights of layers have gone
    kept.push_back(planned.memory.peak().most_by_kind[static_cast<int>(MemoryKind::parameters)]);
  }
  for (size_t i = 1; i < kept.size(); ++i) {
    CHECK(all[i] < all[i - 1]);
    CHECK(kept[i] - kept[i - 1] == kept[1] - kept[0]);  // half a layer: the part of the other rank
    CHECK(kept[i] > kept[i - 1]);
  }
}
