// Pipeline parallelism against one process: every schedule, alone and with the other axes.
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct Case {
  const char* schedule;
  int pipeline, chunks;
};
constexpr Case kCases[] = {{"gpipe", 2, 1},       {"1f1b", 2, 1},  {"1f1b", 4, 1},
                           {"interleaved", 2, 2}, {"zb-h1", 2, 1}, {"zb-h1", 4, 1},
                           {"zb-h2", 3, 1},       {"zbv", 2, 2},   {"dualpipev", 2, 2}};

void check_same_training(const TinyResult& one, const TinyResult& many, const std::string& what) {
  INFO(what);
  CHECK(one.losses == many.losses);
  CHECK(one.eval_loss == many.eval_loss);
  bool same = one.gradients == many.gradients;
  CHECK(same);
  same = one.parameters == many.parameters;
  CHECK(same);
}

}  // namespace

TEST_CASE("every pipeline schedule equals one process bit for bit") {
  for (const char* precision : {"fp64", "fp32", "bf16"})
    for (const char* architecture : {"llama", "gpt2", "olmo2", "gemma2", "gemma3_text", "deepseek_v2"}) {
      TinyOptions one;
      one.architecture = architecture;
      one.precision = precision;
      one.layers = 5;
      one.dropout = 0.1;
      one.padded_targets = true;
      one.untied = true;  // a tied embedding sums its two gradients in another order
      const TinyResult base = train_tiny(one);
      for (const Case& c : kCases) {
        TinyOptions many = one;
        many.pipeline = c.pipeline;
        many.schedule = c.schedule;
        many.chunks = c.chunks;
        const TinyResult result = train_tiny(many);
        check_same_training(base, result,
                            fmt::format("{} {} {} on {}", architecture, precision, c.schedule, c.pipeline));
        CHECK(result.plan_bytes == result.used_bytes);
        CHECK(result.plan_wire == result.used_wire);
      }
    }
}

TEST_CASE("a pipeline's step of fewer micro-batches is one process's, bit for bit, in the planned memory") {
  TinyOptions one;
  one.layers = 5;
  one.dropout = 0.1;
  one.padded_targets = true;
  one.untied = true;
  one.steps = 2;
  TinyResult whole;
  for (const int64_t micros : {0, 1, 2, 3, 5, 7}) {
    one.micros = micros;
    const TinyResult base = train_tiny(one);
    if (micros == 0)
      whole = base;
    else
      CHECK(base.parameters != whole.parameters);
    for (const Case& c : kCases) {
      TinyOptions many = one;
      many.pipeline = c.pipeline, many.schedule = c.schedule, many.chunks = c.chunks;
      const TinyResult result = train_tiny(many);
      check_same_training(base, result,
                          fmt::format("{} of 8 micro-batches, {} on {}", micros, c.schedule, c.pipeline));
      CHECK(result.used_bytes[0] <= result.plan_bytes[0]);
    }
  }
}

TEST_CASE("a smaller step of a pipeline may take more than the whole one, and is planned too") {
  TinyOptions o;
  o.pipeline = 4;
  o.layers = 8, o.seq = 32, o.vocab = 257, o.intermediate = 64, o.kv_heads = 4;
  o.global_batch = 16;
  o.steps = 1;
  o.bucket_elements = 1 << 20;
  int larger = 0;
  int64_t whole = 0;
  for (int64_t micros = 16; micros > 0; --micros) {
    o.micros = micros < 16 ? micros : 0;
    INFO(micros << " of 16 micro-batches");
    const TinyResult r = train_tiny(o);
    if (micros == 16) whole = r.plan_bytes[0];
    larger += r.used_bytes[0] > whole;
  }
  CHECK(larger > 0);
}

TEST_CASE("pipelines compose with tied embeddings, tensor, data and every stage of ZeRO") {
  TinyOptions one;
  one.architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  one.tied = true;
  one.layers = 4;
  one.dropout = 0.1;
  one.padded_targets = true;
  const TinyResult base = train_tiny(one);
  for (const Case& c : kCases)
    for (int zero : {0, 1, 2, 3})
      for (const auto& [data, tensor, sequence] :
           {std::tuple(2, 1, false), std::tuple(1, 2, true), std::tuple(2, 2, false)}) {
        if (c.pipeline * data * tensor > 8) continue;
        if (data == 1 && zero > 1) continue;
        TinyOptions many = one;
        many.pipeline = c.pipeline;
        many.schedule = c.schedule;
        many.chunks = c.chunks;
        many.ranks = data;
        many.tensor = tensor;
        many.sequence_parallel = sequence;
        many.zero_stage = zero;
        INFO(one.architecture << ", " << c.schedule << " on " << c.pipeline << ", data " << data
                              << ", tensor " << tensor << ", ZeRO " << zero);
        const TinyResult result = train_tiny(many);
        require_parity(base, result, 1e-12);
        CHECK(result.plan_bytes == result.used_bytes);
        CHECK(result.plan_wire == result.used_wire);
      }
}
