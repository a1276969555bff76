// ZeRO-3 whose weights stay gathered for a step: the bits of layers that gather theirs again, what ZeRO-2
// sends, and between steps a rank has its pieces alone.
#include <algorithm>
#include <map>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions reshard_job() {
  TinyOptions o;
  o.ranks = 2, o.zero_stage = 3;
  o.global_batch = 8;
  o.layers = 4;
  o.bucket_elements = 2000;
  o.padded_targets = true;
  return o;
}

int64_t gathers(const std::vector<std::string>& ops) {
  return std::count_if(ops.begin(), ops.end(), [](const std::string& op) {
    return op.starts_with("comm: ") && op.ends_with("all_gather");
  });
}

/// Trains with and without; returns both.
std::pair<TinyResult, TinyResult> both_ways(TinyOptions o) {
  const TinyResult again = train_tiny(o);
  o.reshard = false;
  const TinyResult kept = train_tiny(o);
  check_same_bits(again, kept);
  CHECK(again.averages == kept.averages);
  CHECK(kept.plan_bytes == kept.used_bytes);
  if (o.expert == 1) CHECK(kept.plan_wire == kept.used_wire);  // else it depends on where tokens go
  return {again, kept};
}

}  // namespace

TEST_CASE("weights that stay gathered for a step give the bits of those that are gathered again",
          "[reshard]") {
  const auto check = [](const char* name, auto change) {
    INFO(name);
    TinyOptions o = reshard_job();
    o.precision = "fp32";
    change(o);
    const auto [again, kept] = both_ways(o);
    CHECK(kept.used_wire[0] < again.used_wire[0]);
    CHECK(kept.used_bytes[0] != again.used_bytes[0]);
  };
  check("data", [](TinyOptions& o) { o.precision = "bf16", o.ema_decay = 0.9; });
  check("one micro-batch", [](TinyOptions& o) { o.global_batch = 2, o.dropout = 0.1; });
  check("two levels", [](TinyOptions& o) { o.ranks = 4, o.shard = 2; });
  check("tensor, by turns", [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = o.interleaved = true; });
  check("2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2; });
  check("context", [](TinyOptions& o) { o.context = 2, o.kv_heads = 2; });
  check("1f1b", [](TinyOptions& o) { o.pipeline = 2; });
  check("zbv", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zbv", o.chunks = 2; });
  check("dualpipev", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "dualpipev", o.chunks = 2; });
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
  check("fp8", [](TinyOptions& o) { o.fp8.emplace().output_layer = true; });
}

TEST_CASE("weights that stay gathered for a step equal one process, and send what ZeRO-2 does", "[reshard]") {
  each_layout(reshard_job(), [](const std::string& name, TinyOptions o) {
    INFO(name);
    TinyOptions one = o;
    one.ranks = one.tensor = one.pipeline = one.context = 1, one.chunks = 1, one.tensor_mode = "1d";
    one.schedule = "1f1b", one.zero_stage = 0, one.sequence_parallel = false;
    if (o.ranks == 1) o.ranks = 2;
    if (o.ranks * o.micro_batch > o.global_batch || tiny_world(o) > 8) return;
    o.zero_stage = 3, o.reshard = false;
    const TinyResult kept = train_tiny(o);
    require_parity(train_tiny(one), kept, 1e-12);
    CHECK(kept.plan_bytes == kept.used_bytes);
    CHECK(kept.plan_wire == kept.used_wire);
    o.zero_stage = 2, o.reshard = true;
    CHECK(train_tiny(o).used_groups.at("gradient") == kept.used_groups.at("gradient"));
  });
}

TEST_CASE("weights that stay are gathered once a step, in the planned order, and are not there between steps",
          "[reshard]") {
  TinyOptions o = reshard_job();
  o.timeline = true;
  const auto [again, kept] = both_ways(o);
  std::map<bool, int64_t> once;
  for (const TinyResult* r : {&again, &kept}) {
    for (size_t rank : {0, 1}) CHECK(op_difference(r->plan_ops[rank], r->used_ops[rank]) == "");
    once[r == &kept] = gathers(r->used_ops[0]);
  }
  // Four micro-batches gather twice, but for the embedding, the head and where backward begins.
  CHECK(once[true] > 4);
  CHECK(once[false] > 4 * once[true]);
  const auto peak = [&](bool reshard, int64_t layers) {
    TinyOptions p = reshard_job();
    p.layers = layers, p.reshard = reshard;
    MetaJob planned(p, 0);
    const int64_t before = planned.memory.live_bytes();
    planned.program.train_step({}, tiny_adamw(1));
    CHECK(planned.memory.live_bytes() == before);  // all that is gathered has gone
    const auto& peak = planned.memory.peak();
    const auto most = [&](MemoryKind k) { return peak.most_by_kind[static_cast<int>(k)]; };
    const int64_t gathered = most(MemoryKind::communication), pieces = most(MemoryKind::parameters);
    if (!reshard) CHECK(gathered == 2 * pieces);
    const HostBatch any;
    bool more = true;
    planned.program.evaluate([&] { return std::exchange(more, false) ? &any : nullptr; });
    CHECK(planned.memory.live_bytes() == before);
    return gathered;
  };
  CHECK(peak(true, 12) < peak(false, 12) / 2);
}
