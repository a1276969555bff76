// The output layer in FP8 (fp8.output_layer) under every layout and in chunks, in fp64 around its matmuls.
#include <algorithm>

#include "kernels/matmul/quantize.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// 48 tokens in a micro-batch, in three chunks of logits; four micro-batches in a step.
TinyOptions job(Fp8Recipe recipe) {
  TinyOptions o;
  o.micro_batch = 2;
  o.logits_chunk.rows = 16;
  o.fp8.emplace();
  o.fp8->recipe = recipe;
  o.fp8->history = 2;
  o.fp8->output_layer = true;
  return o;
}

void require_exact_memory(const TinyResult& r) {
  CHECK(r.used_bytes == r.plan_bytes);
  CHECK(r.used_wire == r.plan_wire);
}

int64_t peak_of(const TinyOptions& o, MemoryKind kind) {
  MetaJob meta(o, 0);
  meta.program.train_step({}, tiny_adamw(1));
  return meta.memory.peak().by_kind[static_cast<int>(kind)];
}

int64_t calls_of(const TinyOptions& o, std::string_view op, std::string_view layer) {
  MetaJob meta(o, 0);
  meta.program.train_step({}, tiny_adamw(1));
  return std::count_if(meta.trace.entries().begin(), meta.trace.entries().end(),
                       [&](const TraceEntry& e) { return e.name == op && e.layer == layer; });
}

}  // namespace

TEST_CASE("the output layer in FP8 under every layout equals one process, tied or not") {
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise})
    for (const bool tied : {false, true}) {
      CAPTURE(static_cast<int>(recipe), tied);
      TinyOptions o = job(recipe);
      o.tied = tied, o.untied = !tied, o.layers = 4;
      const TinyResult one = train_tiny(o);
      require_exact_memory(one);
      const auto check = [&](const char* what, auto change) {
        CAPTURE(what);
        TinyOptions m = o;
        change(m);
        const TinyResult many = train_tiny(m);
        require_parity(one, many, 1e-11);
        require_exact_memory(many);
      };
      check("data", [](TinyOptions& m) { m.ranks = 2; });
      for (int stage : {1, 2, 3}) check("ZeRO", [&](TinyOptions& m) { m.ranks = 2, m.zero_stage = stage; });
      check("ZeRO-3, kept for a step",
            [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 3, m.reshard = false; });
      check("one micro-batch", [](TinyOptions& m) { m.ranks = 4; });
      check("tensor", [](TinyOptions& m) { m.tensor = 2; });
      check("tensor, sequence", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; });
      check("pipeline", [](TinyOptions& m) { m.pipeline = 2; });
      check("pipeline, zero bubble", [](TinyOptions& m) { m.pipeline = 2, m.schedule = "zb-h1"; });
      check("dualpipev", [](TinyOptions& m) { m.pipeline = 2, m.schedule = "dualpipev", m.chunks = 2; });
      check("hybrid", [](TinyOptions& m) { m.tensor = m.pipeline = m.ranks = 2, m.zero_stage = 1; });
      check("recompute", [](TinyOptions& m) { m.recompute.run = 1; });
      if (recipe == Fp8Recipe::tensorwise) continue;  // chunks of other tokens, which recipes refuse
      check("context", [](TinyOptions& m) { m.context = 2; });
      check("context, tensor", [](TinyOptions& m) { m.context = m.tensor = 2, m.sequence_parallel = true; });
    }
}

TEST_CASE("the output layer in FP8 by delayed scaling: the same numbers with chunks of another size") {
  TinyOptions o = job(Fp8Recipe::delayed);
  const TinyResult small = train_tiny(o);
  for (const int64_t rows : {32, 48, 0}) {
    o.logits_chunk.rows = rows;
    const TinyResult other = train_tiny(o);
    CHECK(small.losses[0] == other.losses[0]);
    require_parity(small, other, 1e-13);
    require_exact_memory(other);
  }
}

TEST_CASE("blocks of the output layer in FP8 do not depend on chunks, nor on layouts that do not cut them") {
  TinyOptions o = job(Fp8Recipe::blockwise);
  o.hidden = 256, o.heads = 2, o.kv_heads = 2, o.intermediate = 256, o.layers = 2, o.steps = 2;
  o.vocab = 256, o.seq = 200, o.global_batch = 4;
  o.logits_chunk.rows = 128;  // 400 tokens: 128, 128, 128 and 16
  const TinyResult one = train_tiny(o);
  const auto check = [&](const char* what, auto change) {
    CAPTURE(what);
    TinyOptions m = o;
    change(m);
    const TinyResult many = train_tiny(m);
    require_parity(one, many, 1e-11);
    require_exact_memory(many);
  };
  check("one chunk", [](TinyOptions& m) { m.logits_chunk.rows = 512; });
  check("ZeRO-3", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 3; });
  check("tensor, sequence", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; });
  check("pipeline", [](TinyOptions& m) { m.pipeline = 2; });
}

TEST_CASE("rows of chunks with FP8 are multiples that a GPU multiplies, or whole blocks") {
  Fp8Settings settings;
  const int64_t aligned = Head::fp8_chunk_multiple(settings);
  settings.recipe = Fp8Recipe::blockwise;
  const int64_t block = Head::fp8_chunk_multiple(settings);
  CHECK((aligned == 16 && block == kFp8Block));
  for (const int64_t multiple : {int64_t{1}, aligned, block})
    for (const int64_t rows : {1, 16, 48, 400, 4096, 24576, 24592})
      for (const int64_t asked : {0, 128, 1024, 4096}) {
        CAPTURE(multiple, rows, asked);
        const int64_t chunk = Head::chunk_rows({asked, 4096}, rows, 128256, multiple);
        CHECK(((chunk % multiple == 0 || chunk == rows) && chunk > 0));
        CHECK(chunk <= std::min(rows, asked > 0 ? asked : 4096));
        CHECK((rows + chunk - 1) / chunk <=
              (rows + (asked > 0 ? asked : 4096) - 1) / (asked > 0 ? asked : 4096));
      }
}

TEST_CASE("the weight of the output layer in FP8 is rounded once, in memory of its own") {
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise}) {
    CAPTURE(static_cast<int>(recipe));
    TinyOptions o = job(recipe);
    o.untied = true;
    o.ranks = 2, o.zero_stage = 2;  // two micro-batches in a step
    TinyOptions without = o, once = o, released = o;
    without.fp8->output_layer = false;
    once.ranks = 4;
    released.zero_stage = 3;
    const int64_t codes = 2 * 61 * 32, step = recipe == Fp8Recipe::tensorwise ? 64 : 0;
    const auto rounded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    CHECK(peak_of(o, MemoryKind::fp8_weights) - peak_of(without, MemoryKind::fp8_weights) ==
          2 * rounded(codes / 2) + step);
    CHECK(peak_of(once, MemoryKind::fp8_weights) == 0);
    CHECK(peak_of(released, MemoryKind::fp8_weights) == 0);
    // A weight in both orientations, for chunks and both micro-batches of a step. Input and gradient in both
    // orientations for a chunk; delayed scaling reads a gradient once for both.
    const int64_t chunks = 3, a_chunk = recipe == Fp8Recipe::delayed ? 3 : 4;
    CHECK(calls_of(o, "quantize", kHeadLayer) == 2 + 2 * chunks * a_chunk);
    CHECK(calls_of(once, "quantize", kHeadLayer) == 2 + chunks * a_chunk);
    CHECK(calls_of(released, "quantize", kHeadLayer) == 2 * (2 + chunks * a_chunk));
    // The three ways are one computation.
    const TinyResult a = train_tiny(o);
    check_same_bits(a, train_tiny(released));
    require_exact_memory(a);
    require_exact_memory(train_tiny(once));
  }
}

TEST_CASE("what FP8 of the output layer changes is seen: formats, kept weights, and a frozen weight") {
  const TinyOptions o = job(Fp8Recipe::delayed);
  const auto losses = [&](auto change) {
    TinyOptions m = o;
    change(m);
    return train_tiny(m).losses;
  };
  const std::vector<double> on = losses([](TinyOptions&) {});
  const std::vector<double> off = losses([](TinyOptions& m) { m.fp8->output_layer = false; });
  for (size_t i = 0; i < on.size(); ++i) {
    CHECK(std::abs(on[i] - off[i]) > 1e-6);
    CHECK(std::abs(on[i] / off[i] - 1) < 0.03);
  }
  CHECK(std::abs(losses([](TinyOptions& m) { m.fp8->hybrid = false; })[2] - on[2]) > 1e-7);
  CHECK(losses([](TinyOptions& m) { m.untied = true, m.fp8->keep = {"lm_head.weight"}; }) ==
        losses([](TinyOptions& m) { m.untied = true, m.fp8->output_layer = false; }));
  // Without other layers in FP8, the first loss is rounded by the logits alone.
  const auto alone = [](TinyOptions& m) { m.fp8->first_layers = m.layers; };
  CHECK(losses(alone)[0] != losses([&](TinyOptions& m) { alone(m), m.fp8->output_layer = false; })[0]);
  TinyOptions frozen = o;
  frozen.untied = true;
  frozen.optimizer.frozen = {"lm_head.weight"};
  const TinyResult one = train_tiny(frozen);
  require_exact_memory(one);
  frozen.tensor = 2, frozen.sequence_parallel = true;
  require_parity(one, train_tiny(frozen), 1e-11);
}

TEST_CASE("gradients of the first step are not lost in the FP8 of the output layer") {
  // The gradient of a logit of 1536 tokens: below half of the smallest number of e5m2 with a step of 1.
  TinyOptions o = job(Fp8Recipe::delayed);
  o.global_batch = 64, o.steps = 1;
  o.fp8->first_layers = o.layers;
  TinyOptions plain = o;
  plain.fp8.reset();
  CHECK(worst_relative(train_tiny(plain).gradients, train_tiny(o).gradients) < 0.2);
}

TEST_CASE("modules that predict more tokens multiply by the output layer's FP8 weight") {
  TinyOptions o = job(Fp8Recipe::delayed);
  o.architecture = "deepseek_v3", o.modules = 1;
  o.fp8->first_layers = o.layers;  // attention through latents has no matmuls in FP8
  const TinyResult one = train_tiny(o);
  require_exact_memory(one);
  TinyOptions off = o;
  off.fp8->output_layer = false;
  CHECK(std::abs(train_tiny(off).mtp_losses[2] - one.mtp_losses[2]) > 1e-7);
  const auto check = [&](const char* what, auto change) {
    CAPTURE(what);
    TinyOptions m = o;
    change(m);
    const TinyResult many = train_tiny(m);
    require_parity(one, many, 1e-11);
    require_exact_memory(many);
  };
  check("tensor, sequence", [](TinyOptions& m) { m.tensor = 2, m.sequence_parallel = true; });
  check("ZeRO-3", [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 3; });
  check("pipeline", [](TinyOptions& m) { m.pipeline = 2; });
}

TEST_CASE("bf16 with the output layer in FP8 trains as bf16 does") {
  TinyOptions o = job(Fp8Recipe::delayed);
  o.vocab = 64;
  require_exact_memory(check_fp8_follows_bf16(o, [](TinyOptions& m) { m.ranks = 2, m.zero_stage = 2; }));
}

TEST_CASE("a run changes between bf16 and FP8 of the output layer in planned memory") {
  TinyOptions o = job(Fp8Recipe::delayed);
  o.precision = "bf16";
  o.vocab = 64, o.steps = 3;
  o.products = {MatmulPrecision::fp8, MatmulPrecision::plain, MatmulPrecision::fp8};
  require_exact_memory(train_tiny(o));
  o.ranks = o.tensor = 2, o.zero_stage = 3;
  require_exact_memory(train_tiny(o));
}
