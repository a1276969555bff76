// The layout changes speed, never the result: data parallelism, accumulation and ZeRO-1 against one process.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("data parallel and accumulation equal one process to 1e-12 in fp64") {
  const auto architecture = GENERATE(as<std::string>(), "llama", "gpt2");
  TinyOptions one;
  one.architecture = architecture;
  one.micro_batch = 8;
  one.padded_targets = true;
  const TinyResult base = train_tiny(one);
  CHECK(base.losses[0] > 3.5);              // near log(61) = 4.11: untrained
  CHECK(base.losses[2] != base.losses[0]);  // updates do something

  TinyOptions accumulated = one;
  accumulated.micro_batch = 1;
  require_parity(base, train_tiny(accumulated), 1e-12);
  for (int ranks : {2, 4, 8})
    for (int stage : {0, 1, 2, 3}) {
      TinyOptions many = one;
      many.micro_batch = 1;
      many.ranks = ranks;
      many.zero_stage = stage;
      INFO(architecture << " on " << ranks << " ranks, ZeRO " << stage);
      require_parity(base, train_tiny(many), 1e-12);
    }
}

TEST_CASE("dropout does not depend on the layout") {
  TinyOptions one;
  one.architecture = "gpt2";
  one.dropout = 0.2;
  one.micro_batch = 4;
  const TinyResult base = train_tiny(one);
  TinyOptions many = one;
  many.ranks = 4;
  many.micro_batch = 1;
  require_parity(base, train_tiny(many), 1e-12);
  // Negative control: without dropout the losses are others.
  TinyOptions dry = one;
  dry.dropout = 0;
  CHECK(std::abs(train_tiny(dry).losses[0] - base.losses[0]) > 1e-4);
}

TEST_CASE("fp32 layouts agree to 1e-5") {
  TinyOptions one;
  one.precision = "fp32";
  one.tied = true;
  one.micro_batch = 4;
  TinyOptions many = one;
  many.ranks = 2;
  many.zero_stage = 1;
  many.micro_batch = 2;
  require_parity(train_tiny(one), train_tiny(many), 1e-5);
}

TEST_CASE("every stage of ZeRO equals plain data parallel bit for bit") {
  const auto precision = GENERATE(as<std::string>(), "fp32", "bf16", "fp16", "fp64");
  const int ranks = GENERATE(2, 3);
  const int stage = GENERATE(1, 2, 3);
  TinyOptions plain;
  plain.precision = precision;
  plain.ranks = ranks;
  plain.global_batch = 6;
  plain.micro_batch = 6 / ranks;
  if (stage == 1) plain.micro_batch = 1;  // 2 and 3 add micro-batches after the sum over ranks, not before
  TinyOptions zero = plain;
  zero.zero_stage = stage;
  const TinyResult a = train_tiny(plain), b = train_tiny(zero);
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.gradients == b.gradients);
  CHECK(a.parameters == b.parameters);
}

TEST_CASE("planned arena bytes and wire bytes are exact") {
  for (const std::string precision : {"fp32", "bf16", "fp16"})
    for (const std::string architecture : {"llama", "gpt2"})
      for (int ranks : {1, 2, 3})
        for (int stage : {0, 1, 2, 3}) {
          TinyOptions o;
          o.precision = precision;
          o.architecture = architecture;
          o.ranks = ranks;
          o.zero_stage = stage;
          o.global_batch = 12;
          o.micro_batch = 2;
          o.dropout = stage ? 0.1 : 0;
          const TinyResult r = train_tiny(o);
          INFO(precision << " " << architecture << " ranks " << ranks << " ZeRO " << stage);
          CHECK(r.plan_bytes == r.used_bytes);
          CHECK(r.plan_wire == r.used_wire);
          for (int64_t wire : r.used_wire) CHECK((ranks == 1 ? wire == 0 : wire > 0));
        }
}

TEST_CASE("a run repeats bit for bit") {
  TinyOptions o;
  o.precision = "fp32";
  o.ranks = 2;
  const TinyResult a = train_tiny(o), b = train_tiny(o);
  CHECK(a.losses == b.losses);
  CHECK(a.parameters == b.parameters);
}
