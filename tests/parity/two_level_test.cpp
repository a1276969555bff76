// Gradients on two levels: hybrid sharding (ZeRO inside, copies across) and the two-level sum without it,
// against one process and against each other, with the bytes of each level.
#include "tests/parity/mutant_group.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

TinyOptions two_level(int ranks, int shard, int zero) {
  TinyOptions o;
  o.ranks = ranks;
  o.shard = shard;
  o.zero_stage = zero;
  o.padded_targets = true;
  return o;
}

/// Bytes of all gradients of a rank, padding included, and of the parameters that are gathered.
int64_t gradient_bytes(const TinyOptions& o) {
  MetaJob job(o, 0);
  return job.memory.peak().by_kind[static_cast<int>(MemoryKind::gradients)];
}

}  // namespace

TEST_CASE("two levels of gradients equal one process to 1e-12, with every stage of ZeRO", "[two_level]") {
  TinyOptions one;
  one.architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  one.padded_targets = true;
  one.dropout = 0.1;
  one.clip = 0.05;  // clips: the norm must be right
  const TinyResult base = train_tiny(one);
  for (const auto& [ranks, inside] : {std::pair(4, 2), {8, 4}, {8, 2}})
    for (int zero : {0, 1, 2, 3}) {
      TinyOptions many = two_level(ranks, inside, zero);
      many.architecture = one.architecture;
      many.dropout = one.dropout;
      many.clip = one.clip;
      INFO(one.architecture << " on " << ranks << " ranks, " << inside << " a node, ZeRO " << zero);
      const TinyResult result = train_tiny(many);
      CHECK(base.norms[0] > many.clip);
      require_parity(base, result, 1e-12);
      CHECK(result.plan_bytes == result.used_bytes);
      CHECK(result.plan_wire == result.used_wire);
    }
}

TEST_CASE("hybrid sharding equals the two-level sum bit for bit, at every stage", "[two_level]") {
  for (const char* precision : {"fp64", "fp32", "bf16"})
    for (const auto& [ranks, inside] : {std::pair(4, 2), {6, 3}, {6, 2}}) {
      TinyOptions plain = two_level(ranks, inside, 0);
      plain.precision = precision;
      plain.global_batch = 12;
      for (const bool accumulate : {true, false}) {
        plain.micro_batch = accumulate ? 1 : 12 / ranks;
        const TinyResult base = train_tiny(plain);
        for (int zero : {1, 2, 3}) {
          if (accumulate && zero > 1) continue;  // they add micro-batches after the sum over ranks
          TinyOptions hybrid = plain;
          hybrid.zero_stage = zero;
          INFO(precision << ", " << ranks << " ranks, " << inside << " a node, ZeRO " << zero);
          check_same_bits(base, train_tiny(hybrid));
        }
      }
    }
}

TEST_CASE(
    "gradients summed in bf16 on two levels: half the bytes, sums close to those of fp32, the same in all "
    "stages",
    "[two_level]") {
  TinyOptions o = two_level(4, 2, 0);
  o.precision = "fp32";
  o.micro_batch = 2;  // one a step: stages 2 and 3 round as the others do
  const TinyResult wide = train_tiny(o);
  o.reduce_bf16 = true;
  const TinyResult base = train_tiny(o);
  CHECK(base.gradients != wide.gradients);
  CHECK(worst_relative(wide.gradients, base.gradients) < 1e-2);
  for (size_t i = 0; i < base.losses.size(); ++i)
    CHECK(base.losses[i] == Approx(wide.losses[i]).epsilon(5e-3));
  // Across half, besides norms and counts; inside sums are gathered in fp32.
  const auto part = [&](const TinyResult& r, const char* group) {
    return static_cast<double>(r.used_groups.at(group)) / static_cast<double>(wide.used_groups.at(group));
  };
  CHECK(part(base, "replicate") == Approx(0.5).epsilon(0.03));
  for (int stage : {0, 1, 2, 3}) {
    INFO("ZeRO " << stage);
    o.zero_stage = stage;
    const TinyResult r = train_tiny(o);
    check_same_bits(base, r);
    CHECK(r.plan_bytes == r.used_bytes);
    CHECK(r.plan_wire == r.used_wire);
  }
  // Experts have groups of their own; micro-batches are added in fp32.
  o.architecture = "mixtral", o.moe.num_experts = 4, o.moe.top_k = 2, o.expert = 2, o.micro_batch = 1;
  for (int stage : {0, 1, 2, 3}) {
    INFO("experts, ZeRO " << stage);
    o.zero_stage = stage;
    TinyOptions exact = o;
    exact.reduce_bf16 = false;
    const TinyResult r = train_tiny(o), full = train_tiny(exact);
    CHECK(r.gradients != full.gradients);
    CHECK(worst_relative(full.gradients, r.gradients) < 1e-2);
    CHECK(r.plan_bytes == r.used_bytes);
  }
}

TEST_CASE("stages 2 and 3 of hybrid sharding agree bit for bit with accumulation", "[two_level]") {
  TinyOptions two = two_level(4, 2, 2), three = two_level(4, 2, 3);
  check_same_bits(train_tiny(two), train_tiny(three));
}

TEST_CASE("a group of all ranks is one level, to the bit and to the byte", "[two_level]") {
  for (int zero : {0, 3}) {
    const TinyResult flat = train_tiny(two_level(4, 0, zero)), all = train_tiny(two_level(4, 4, zero));
    check_same_bits(flat, all);
    CHECK(flat.used_groups == all.used_groups);
    CHECK(flat.plan_bytes == all.plan_bytes);
  }
}

TEST_CASE("two levels compose with tensor, context and pipeline", "[two_level]") {
  TinyOptions one;
  one.tied = true;
  one.layers = 4;
  one.padded_targets = true;
  one.dropout = 0.1;
  one.kv_heads = 4;
  const TinyResult base = train_tiny(one);
  struct Case {
    int data, tensor, context, pipeline, shard;
    const char *comm, *schedule;
    int chunks;
  };
  for (const Case& c : {Case{4, 2, 1, 1, 2, "p2p", "1f1b", 1}, Case{4, 1, 1, 2, 2, "p2p", "zb-h1", 1},
                        Case{4, 1, 2, 1, 4, "p2p", "1f1b", 1}, Case{2, 1, 2, 1, 2, "a2a", "1f1b", 1},
                        Case{2, 1, 2, 2, 2, "all_gather", "zbv", 2}, Case{2, 2, 2, 1, 2, "p2p", "1f1b", 1}})
    for (int zero : {0, 1, 2, 3}) {
      TinyOptions many = one;
      many.ranks = c.data;
      many.tensor = c.tensor;
      many.sequence_parallel = c.tensor > 1;
      many.context = c.context;
      many.context_comm = c.comm;
      many.pipeline = c.pipeline;
      many.schedule = c.schedule;
      many.chunks = c.chunks;
      many.shard = c.shard;
      many.zero_stage = zero;
      INFO("data " << c.data << " tensor " << c.tensor << " context " << c.context << " pipeline "
                   << c.pipeline << " inside " << c.shard << " ZeRO " << zero);
      const TinyResult result = train_tiny(many);
      require_parity(base, result, 1e-12);
      CHECK(result.plan_bytes == result.used_bytes);
      CHECK(result.plan_wire == result.used_wire);
    }
}

TEST_CASE("bytes of each level are those of the formulas, planned and counted", "[two_level]") {
  for (const auto& [nodes, g] : {std::pair(2, 2), {2, 4}, {4, 2}, {3, 2}}) {
    TinyOptions o = two_level(nodes * g, g, 0);
    o.global_batch = 2 * nodes * g;  // two micro-batches
    const int64_t n = nodes, s = gradient_bytes(o), steps = o.steps, micros = 2;
    INFO(nodes << " nodes of " << g);
    TinyResult r = train_tiny(o);
    CHECK(r.plan_groups == r.used_groups);
    CHECK(r.used_groups["shard"] == steps * 2 * s * (g - 1) / g);
    CHECK(r.used_groups["replicate"] == steps * 2 * (s / g) * (n - 1) / n);
    // Without levels; the norm and the count of tokens go there too, and are a few bytes.
    TinyOptions flat = o;
    flat.shard = 0;
    const int64_t all = nodes * g;
    const int64_t rest = train_tiny(flat).used_groups["gradient"] - steps * 2 * s * (all - 1) / all;
    CHECK((rest > 0 && rest < 3000));
    for (int zero : {1, 2, 3}) {
      o.zero_stage = zero;
      r = train_tiny(o);
      INFO("ZeRO " << zero);
      CHECK(r.plan_groups == r.used_groups);
      // Reduce-scatters: one a step, or one a micro-batch. Gathers of as many bytes, fp64 all: after the
      // update; before each forward and each backward.
      const int64_t scatters = zero == 1 ? 1 : micros, gathers = zero < 3 ? 1 : 2 * micros;
      CHECK(r.used_groups["replicate"] == steps * 2 * (s / g) * (n - 1) / n);
      if (zero < 3) CHECK(r.used_groups["shard"] == steps * (scatters + gathers) * s * (g - 1) / g);
      if (zero == 3) CHECK(r.used_groups["shard"] <= steps * (scatters + gathers) * s * (g - 1) / g);
    }
  }
}

TEST_CASE("hybrid sharding keeps a node's share of the state, not the world's", "[two_level]") {
  const auto kept = [](int shard, MemoryKind kind) {
    const MetaJob job(two_level(8, shard, 3), 0);
    return job.memory.peak().by_kind[static_cast<int>(kind)];
  };
  for (MemoryKind kind : {MemoryKind::parameters, MemoryKind::optimizer}) {
    CHECK(kept(4, kind) == 2 * kept(0, kind));
    CHECK(kept(2, kind) == 4 * kept(0, kind));
  }
}

TEST_CASE("negative control: a level left out changes the numbers", "[two_level]") {
  for (int zero : {0, 1, 3}) {
    const TinyOptions o = two_level(4, 2, zero);
    const TinyResult good = train_tiny(o);
    for (const char* group : {"shard", "replicate"}) {
      const auto changes = [&](int64_t target) {
        const TinyResult bad = train_tiny(o, [&](const GroupRequest& r, std::unique_ptr<Communicator> inner) {
          return std::make_unique<MutantGroup>(std::move(inner), Mutation::remove,
                                               r.name == group ? target : -1);
        });
        return worst_relative(good.parameters, bad.parameters) > 1e-6;
      };
      // With ZeRO-1 the first step begins with gathers of weights that nobody has changed yet.
      const bool gathers = zero == 1 && std::string(group) == "shard";
      int64_t target = 0;
      while (gathers && target < 32 && !changes(target)) ++target;
      INFO("ZeRO " << zero << ", collective " << target << " of " << group);
      CHECK(changes(target));
    }
  }
}

TEST_CASE("levels that the mesh cannot have are named", "[two_level]") {
  const auto wrong = [](int data, int context, const char* order, int ranks) {
    Mesh m;
    m.degree = {data, 1, context, 1, 1, 1, 1, 1, 1};
    std::string error;
    m.order = parse_axis_order(order, error);
    return m.split_levels(ranks);
  };
  CHECK(wrong(4, 2, "tp-cp-dp-pp", 4) == "");
  CHECK(wrong(4, 2, "tp-cp-dp-pp", 2) == "");
  CHECK_THAT(wrong(4, 2, "tp-cp-dp-pp", 1),
             Contains("must be a multiple of the 2 ranks of the context axis"));
  CHECK_THAT(wrong(4, 2, "tp-cp-dp-pp", 3), Contains("must divide the 8 ranks"));
  CHECK(wrong(4, 2, "tp-dp-cp-pp", 2) == "");
  CHECK(wrong(4, 2, "tp-dp-cp-pp", 4) == "");
  CHECK_THAT(wrong(2, 4, "tp-dp-cp-pp", 4), Contains("must divide the 2 ranks of the data axis"));
  CHECK(wrong(2, 4, "tp-dp-cp-pp", 8) == "");
}
