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

void check_exact(const TinyResult& one, const TinyResult& many, const std::string& what) {
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
        check_exact(base, result,
                    fmt::format("{} {} {} on {}", architecture, precision, c.schedule, c.pipeline));
        CHECK(result.plan_bytes == result.used_bytes);
        CHECK(result.plan_wire == result.used_wire);
      }
    }
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
