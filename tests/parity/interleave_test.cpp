// A backward and the next forward by turns: the bits of one after the other, and less time in which compute
// waits.
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Calls check(name, options) for jobs of four micro-batches in which forwards wait for collectives.
template <class F>
void each_interleaved_job(F check) {
  TinyOptions job;
  job.precision = "fp32";
  job.dropout = 0.1;
  job.steps = 3;
  job.padded_targets = true;
  job.global_batch = 4;
  for (const char* architecture : {"llama", "gpt2"})
    for (bool sequence : {false, true})
      for (int zero : {0, 2, 3}) {
        TinyOptions o = job;
        o.architecture = architecture;
        o.tied = zero == 0;
        o.tensor = 2, o.sequence_parallel = sequence;
        o.ranks = 2, o.zero_stage = zero, o.global_batch = 8;
        check(fmt::format("{} tensor 2{}, ZeRO {}", architecture, sequence ? ", sequence" : "", zero), o);
      }
  for (const char* comm : {"p2p", "all_gather", "a2a"}) {
    TinyOptions o = job;
    o.context = 2, o.context_comm = comm, o.kv_heads = 2;
    check(comm, o);
  }
  TinyOptions o = job;
  o.tensor = 4, o.sequence_parallel = true, o.recompute.run = 1;  // 2 key-value heads, layers computed again
  check("recompute", o);
  o = job;
  o.tensor = 2, o.sequence_parallel = true, o.fp8.emplace();
  check("fp8", o);
  o = job;
  o.architecture = "deepseek_v2", o.tensor = 2, o.sequence_parallel = true, o.dropout = 0;
  check("latent attention", o);
  o = job;
  o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2, o.global_batch = 8;
  check("2d", o);
  o = job;
  o.tensor = 8, o.tensor_mode = "3d", o.micro_batch = 4, o.kv_heads = 4, o.intermediate = 64;
  o.global_batch = 16;
  check("3d", o);
  for (int chunks : {1, 2}) {
    o = job;
    o.architecture = "mixtral", o.dropout = 0;
    o.moe.num_experts = 4, o.moe.top_k = 2, o.moe.balance = BalanceLoss::switch_loss;
    o.ranks = 2, o.expert = 2, o.global_batch = 8, o.dispatch.chunks = chunks;
    if (chunks == 2) o.tensor = 2, o.sequence_parallel = true;
    check(fmt::format("experts in {} parts", chunks), o);
  }
}

}  // namespace

TEST_CASE("micro-batches by turns give the bits of one after the other, in the planned memory and order",
          "[interleave]") {
  each_interleaved_job([](const std::string& name, TinyOptions o) {
    INFO(name);
    const TinyResult one = train_tiny(o);
    o.interleaved = true;
    o.timeline = !o.fp8;  // its first step, which is planned, has more
    const TinyResult both = train_tiny(o);
    check_same_bits(one, both);
    CHECK(both.plan_bytes == both.used_bytes);
    if (o.moe.num_experts == 0) CHECK(both.plan_wire == both.used_wire);  // else planned for even routing
    if (o.zero_stage < 3)
      CHECK(one.used_groups == both.used_groups);
    else  // two passes that meet in a layer share what is gathered for it
      CHECK(both.used_groups.at("gradient") < one.used_groups.at("gradient"));
    for (size_t rank = 0; o.timeline && rank < both.plan_ops.size(); ++rank) {
      CHECK(both.plan_ops[rank].size() > 100);
      CHECK(op_difference(both.plan_ops[rank], both.used_ops[rank]) == "");
    }
  });
}

TEST_CASE("a short step and one micro-batch run by turns as they did", "[interleave]") {
  TinyOptions o;
  o.tensor = 2, o.micros = 3;
  const TinyResult one = train_tiny(o);
  o.interleaved = true;
  check_same_bits(one, train_tiny(o));
  o.micros = 0, o.micro_batch = 8;
  const TinyResult alone = train_tiny(o);
  o.interleaved = false;
  check_same_bits(alone, train_tiny(o));
}
