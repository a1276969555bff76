// Timings of `ltrain bench` beside full models, and their use in plans.
#include "runtime/bench/bench.h"

#include <omp.h>
#include <catch2/catch.hpp>

#include "parallel/mesh/mesh.h"
#include "runtime/plan/make_plan.h"

using namespace ltrain;

namespace {

AttentionShape shape_of(int64_t heads, int64_t head_dim, int64_t seq) {
  AttentionShape shape;
  shape.seq = seq, shape.heads = shape.kv_heads = heads, shape.head_dim = head_dim;
  return shape;
}

Recipe context_recipe(const std::string& comm) {
  return resolve(
      parse_recipe("name: tiny\ndevice: cpu\n"
                   "model: {architecture: llama, vocab_size: 257, hidden_size: 64, intermediate_size: 80, "
                   "num_hidden_layers: 2, num_attention_heads: 4, max_position_embeddings: 64}\n"
                   "data: {seq_length: 64}\nparallel: {context: 2, context_comm: " +
                       comm +
                       "}\n"
                       "train: {micro_batch_size: 1, global_batch_size: 4, train_steps: 10}\n"
                       "launch: {threads_per_rank: 1}\n",
                   "tiny.yaml", {}),
      2);
}

double seconds_of(const Plan& plan, const std::string& op) {
  for (const OpPlan& o : plan.ranks[0].ops)
    if (o.name == op) return o.seconds;
  return 0;
}

}  // namespace

TEST_CASE("blocks of attention are timed at each size, and priced by that", "[plan]") {
  RankProfile timed;
  timed.threads = 1;
  bench_attention_blocks(DeviceKind::cpu, 1, 1, {shape_of(2, 16, 32), shape_of(4, 16, 64)},
                         {DType::f32, DType::bf16}, timed);
  for (const char* op : {"attention_block_forward/f32", "attention_block_backward/f32",
                         "attention_block_forward/bf16", "attention_block_backward/bf16"}) {
    INFO(op);
    REQUIRE(timed.ops.count(op) == 1);
    const std::vector<OpSample>& samples = timed.ops.at(op);
    REQUIRE(samples.size() == 2);
    for (const OpSample& s : samples) CHECK((s.seconds > 0 && s.flops > 0 && s.bytes > 0 && s.m > 0));
    // Half of the pairs of 16 queries and 16 keys, 2 heads of 16 channels; forward two products, backward
    // five.
    const double products = std::string(op).find("forward") != std::string::npos ? 2 : 5;
    CHECK(std::min(samples[0].flops, samples[1].flops) == products * 2 * 2 * 16 * (16 * 16 / 2));
  }
  CHECK(timed.ops.size() == 4);
  CHECK(timed.peak_flops.empty());  // MFU is of matmuls
}

TEST_CASE("the bench of sparse matmuls finds a speed, and leaves the number of threads as it was", "[plan]") {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(3);
  MachineProfile p;
  bench_sparse_matmul(p, 128);
  CHECK(p.sparse_matmul_speedup > kLeastSparseSpeedup);
  CHECK(p.sparse_matmul_speedup < 10);
  CHECK(omp_get_max_threads() == 3);
  omp_set_num_threads(threads);
}

TEST_CASE("a plan prices attention under context parallelism as attention, not as a matmul", "[plan]") {
  const std::string comm = GENERATE(as<std::string>(), "p2p", "all_gather");
  const Recipe r = context_recipe(comm);
  const MachineProfile guess = builtin_profile(2);
  const auto with = [&](double slower, const std::vector<std::string>& ops) {
    MachineProfile p = guess;
    for (RankProfile& rank : p.ranks)
      for (const std::string& op : ops)
        for (OpSample& s : rank.ops.at(op + "/f32")) s.seconds *= slower;
    return make_plan(r, p);
  };
  const Plan plain = with(1, {});
  for (const char* op : {"attention_block_forward", "attention_block_backward"}) {
    INFO(comm << " " << op);
    REQUIRE(seconds_of(plain, op) > 0);
    CHECK(seconds_of(with(3, {op}), op) == Approx(3 * seconds_of(plain, op)));
    CHECK(seconds_of(with(3, {"matmul_nt"}), op) == seconds_of(plain, op));
  }
  // A profile from before blocks were timed: as attention of whole sequences.
  MachineProfile old = guess;
  for (RankProfile& rank : old.ranks)
    for (auto it = rank.ops.begin(); it != rank.ops.end();)
      it = it->first.starts_with("attention_block_") ? rank.ops.erase(it) : std::next(it);
  CHECK(make_plan(r, old).step_seconds() == Approx(plain.step_seconds()));
  // A card's figures price a block at the rate of attention.
  const Plan card = make_plan(r, card_profile("h100"));
  CHECK(seconds_of(card, "attention_block_backward") > seconds_of(card, "attention_block_forward"));
}
