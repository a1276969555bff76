// The layout changes speed, never the result: data parallelism, accumulation and ZeRO-1 against one process.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

double worst_relative(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double scale = 0, worst = 0;
  for (double v : a) scale = std::max(scale, std::abs(v));
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst / scale;
}

void require_parity(const TinyResult& one, const TinyResult& many, double tolerance) {
  for (size_t i = 0; i < one.losses.size(); ++i) {
    CHECK(std::abs(one.losses[i] - many.losses[i]) <= tolerance * std::abs(one.losses[i]));
    CHECK(std::abs(one.norms[i] - many.norms[i]) <= tolerance * 10 * std::abs(one.norms[i]));
  }
  CHECK(std::abs(one.eval_loss - many.eval_loss) <= tolerance * std::abs(one.eval_loss));
  CHECK(worst_relative(one.parameters, many.parameters) <= tolerance * 10);
}

}  // namespace

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
    for (int stage : {0, 1}) {
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

TEST_CASE("ZeRO-1 equals plain data parallel bit for bit") {
  const auto precision = GENERATE(as<std::string>(), "fp32", "bf16", "fp64");
  const int ranks = GENERATE(2, 3);
  TinyOptions plain;
  plain.precision = precision;
  plain.ranks = ranks;
  plain.global_batch = 6;
  TinyOptions zero = plain;
  zero.zero_stage = 1;
  const TinyResult a = train_tiny(plain), b = train_tiny(zero);
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.parameters == b.parameters);
}

TEST_CASE("planned arena bytes and wire bytes are exact") {
  for (const std::string precision : {"fp32", "bf16"})
    for (const std::string architecture : {"llama", "gpt2"})
      for (int ranks : {1, 2, 3})
        for (int stage : {0, 1}) {
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
          CHECK((ranks == 1 ? r.used_wire == 0 : r.used_wire > 0));
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
