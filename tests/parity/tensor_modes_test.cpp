// Tensor parallelism in two, two and a half and three dimensions against one process.
#include "tests/parity/mutant_group.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct Mode {
  const char* name;
  int tensor, depth;
};
constexpr Mode kGrid4{"2d", 4, 1}, kGrid9{"2d", 9, 1}, kGrids8{"2.5d", 8, 2}, kCube8{"3d", 8, 1};

std::string describe(const TinyOptions& o) {
  return fmt::format("{}{}, {} of {} ranks, depth {}, data {}, ZeRO {}, micro-batch {}", o.architecture,
                     o.tied ? " tied" : "", o.tensor_mode, o.tensor, o.tensor_depth, o.ranks, o.zero_stage,
                     o.micro_batch);
}

TinyOptions spread(TinyOptions o, const Mode& m) {
  o.tensor_mode = m.name;
  o.tensor = m.tensor;
  o.tensor_depth = m.depth;
  return o;
}

/// 61 tokens do not divide over 2, 3 or 4 ranks: the vocabulary is padded.
TinyOptions small(const char* architecture, bool tied) {
  TinyOptions o;
  o.architecture = architecture;
  o.tied = tied;
  o.untied = !tied;
  o.micro_batch = 8;
  o.seq = 16;
  o.padded_targets = true;
  o.dropout = 0.1;
  return o;
}

void check(const TinyResult& base, const TinyOptions& many) {
  INFO(describe(many));
  const TinyResult result = train_tiny(many);
  require_parity(base, result, 1e-12);
  CHECK(result.plan_bytes == result.used_bytes);
  CHECK(result.plan_wire == result.used_wire);
}

}  // namespace

TEST_CASE("2d, 2.5d and 3d tensor parallelism equal one process to 1e-12 in fp64", "[tensor_modes]") {
  const char* architecture = GENERATE("llama", "gpt2");
  const bool tied = GENERATE(false, true);
  const TinyOptions one = small(architecture, tied);
  const TinyResult base = train_tiny(one);
  for (const Mode& m : {kGrid4, kGrids8, kCube8, Mode{"2.5d", 2, 2}}) {
    TinyOptions many = spread(one, m);
    check(base, many);
    many.micro_batch = 4;  // accumulates
    check(base, many);
    if (m.tensor > 4) continue;
    many.ranks = 2;
    many.zero_stage = tied ? 1 : 0;
    check(base, many);
  }
}

TEST_CASE("a 3 by 3 grid equals one process to 1e-12 in fp64", "[tensor_modes]") {
  TinyOptions one = small(GENERATE("llama", "gpt2"), GENERATE(false, true));
  one.hidden = 36;
  one.intermediate = one.architecture == "gpt2" ? 144 : 45;
  one.heads = 6;
  one.kv_heads = one.architecture == "gpt2" ? 6 : 3;
  one.micro_batch = one.global_batch = 6;
  const TinyResult base = train_tiny(one);
  TinyOptions many = spread(one, kGrid9);
  check(base, many);
  many.micro_batch = 3;
  check(base, many);
}
