// Generation beside a cache of keys and values, in double: against the loss that an evaluation of the same
// text has, which knows nothing of a cache, and against itself in other parts.
// tests/models/family_golden_test.cpp has logits of transformers, token by token.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/models/differences.h"
#include "tests/models/program_rank.h"
#include "tests/support/made_up_families.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

using Logits = std::vector<std::vector<float>>;

struct GeneratingRank : ProgramRank {
  explicit GeneratingRank(const TinyOptions& o, const RopeScaling& scaling = {})
      : ProgramRank(options(o, scaling)) {}
  static ProgramOptions options(const TinyOptions& o, const RopeScaling& scaling) {
    ProgramOptions p = tiny_program(o);
    p.for_training = false;
    p.model.rope_scaling = scaling;
    return p;
  }
};

/// Cross-entropy of token i + 1 by the logits of token i, the mean.
double loss_of(const Logits& logits, const std::vector<int32_t>& targets) {
  double sum = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    double all = 0;
    for (const float l : logits[i]) all += std::exp(static_cast<double>(l));
    sum += std::log(all) - logits[i][static_cast<size_t>(targets[i])];
  }
  return sum / static_cast<double>(targets.size());
}

/// Largest difference of a model's logits. `forget`: rows dropped from the cache, for the negative control.
double worst_logits(TinyOptions o, int64_t forget = 0) {
  o.global_batch = o.micro_batch = 1;
  GeneratingRank rank(o);
  TrainProgram& p = rank.program;
  const HostBatch batch = tiny_batches(o, 0, 0)[0];
  const auto& tokens = batch.tokens;
  KeyValueCache cache = p.make_cache(), other = p.make_cache();

  Logits each;
  for (const int32_t token : tokens) {
    each.push_back(p.extend({{&cache, {token}}})[0]);
    if (forget > 0 && cache.length == forget + 1)
      for (Tensor& t : cache.layers) t.ptr<double>()[t.shape[1] - 1] += 1;  // a value of the first token
  }
  CHECK(cache.length == static_cast<int64_t>(tokens.size()));
  bool once = false;
  const double loss =
      p.evaluate([&]() -> const HostBatch* { return std::exchange(once, true) ? nullptr : &batch; });
  double most = std::abs(loss_of(each, batch.targets) - loss);

  // Scores, in parts of their own.
  cache.length = 0;
  double sum = 0;
  for (const TokenScore& s : p.score(cache, tokens, batch.targets)) sum -= s.log_probability;
  most = std::max(most, std::abs(sum / static_cast<double>(tokens.size()) - loss));

  // At once; in two parts, the second beside another text that goes on with one token.
  cache.length = 0;
  most = std::max(most, largest_difference(p.extend({{&cache, tokens}})[0], each.back()));
  cache.length = 0;
  const size_t half = tokens.size() / 2;
  most = std::max(most, largest_difference(p.extend({{&cache, {tokens.begin(), tokens.begin() + half}}})[0],
                                           each[half - 1]));
  p.extend({{&other, {tokens.begin(), tokens.begin() + 3}}});
  const Logits two = p.extend({{&cache, {tokens[half]}}, {&other, {tokens[3]}}});
  REQUIRE(two.size() == 2);
  most = std::max({most, largest_difference(two[0], each[half]), largest_difference(two[1], each[3])});
  const Logits mixed = p.extend({{&other, {tokens[4]}}, {&cache, {tokens.begin() + half + 1, tokens.end()}}});
  return std::max({most, largest_difference(mixed[0], each[4]), largest_difference(mixed[1], each.back())});
}

}  // namespace

TEST_CASE("generation beside a cache has the loss of an evaluation, in whatever parts a text comes") {
  TinyOptions o;
  o.seq = 25;
  o.vocab = 37;
  o.architecture = GENERATE(as<std::string>(), "llama", "gpt2", "qwen2", "qwen3", "olmo2", "smollm3", "phi3",
                            "gemma2", "gemma3_text");
  INFO(o.architecture);
  CHECK(worst_logits(o) < 1e-6);  // fp32 logits of about 1
}

TEST_CASE("generation of a family with any one trait other than llama's has the loss of an evaluation") {
  TinyOptions o;
  o.seq = 25;
  o.vocab = 37;
  for (const Family& f : made_up_families()) {
    INFO(f.name);
    o.family = &f;
    CHECK(worst_logits(o) < 1e-6);
  }
}

TEST_CASE("generation with windows, layers without positions, over several tiles, and with experts") {
  TinyOptions o;
  o.seq = 150;
  o.vocab = 37;
  SECTION("windows") { o.window = 9, o.without_positions = true; }
  SECTION("a window over tiles") { o.window = 70; }
  SECTION("windows that rotate by a base of their own") { o.window = 9, o.architecture = "gemma3_text"; }
  SECTION("one key-value head") { o.kv_heads = 1; }
  SECTION("experts") { o.architecture = "mixtral", o.moe.num_experts = 4; }
  SECTION("sinks, windows and experts with biases") {
    o.architecture = "gpt_oss", o.moe.num_experts = 4, o.window = 9;
  }
  SECTION("latent attention") {
    o.architecture = "deepseek_v3", o.moe.num_experts = 4, o.moe.shared_experts = 1;
    o.moe.score = RouterScore::sigmoid, o.moe.bias_update_rate = 0.1;
  }
  SECTION("experts of groups") {
    o.architecture = "qwen3_moe", o.moe.num_experts = 4, o.moe.score = RouterScore::sigmoid,
    o.moe.n_group = 2, o.moe.topk_group = 1;
  }
  CHECK(worst_logits(o) < 1e-6);
}

TEST_CASE("a cache that is not what the model read is seen") {
  TinyOptions o;
  o.seq = 25;
  o.vocab = 37;
  CHECK(worst_logits(o, 5) > 1e-4);
}

TEST_CASE("more than a cache has room for, and nothing at all, is refused") {
  TinyOptions o;
  o.seq = 8;
  o.global_batch = o.micro_batch = 1;
  GeneratingRank rank(o);
  KeyValueCache cache = rank.program.make_cache();
  CHECK_THROWS_WITH(rank.program.extend({{&cache, std::vector<int32_t>(9, 1)}}),
                    Catch::Contains("expected at most 8 tokens in a text, got 0 and 9 more"));
  CHECK_THROWS_WITH(rank.program.extend({{&cache, {}}}), Catch::Contains("at least one token"));
}

TEST_CASE("longrope turns a text by the factors of its length, however long the texts beside it are") {
  TinyOptions o;
  o.vocab = 37;
  o.global_batch = o.micro_batch = 1;
  o.architecture = GENERATE(as<std::string>(), "llama", "phi3");
  constexpr int64_t kOriginal = 10;
  RopeScaling scaling;
  scaling.type = RopeType::longrope;
  scaling.original_max_position_embeddings = kOriginal;
  scaling.short_factor = {1.0, 1.1, 1.2, 1.3}, scaling.long_factor = {1.5, 2.5, 4.0, 8.0};
  o.seq = 25;
  GeneratingRank rank(o, scaling);
  TrainProgram& p = rank.program;
  const std::vector<int32_t> tokens = tiny_batches(o, 0, 0)[0].tokens;
  const auto first = [&](int64_t n) { return std::vector<int32_t>(tokens.begin(), tokens.begin() + n); };
  // A program whose sequences have just so many tokens: its one table is that of their length.
  std::map<int64_t, std::vector<float>> right;
  for (const int64_t n : {4, 9, 10, 11, 12, 25}) {
    o.seq = n;
    GeneratingRank alone(o, scaling);
    KeyValueCache cache = alone.program.make_cache();
    right[n] = alone.program.extend({{&cache, first(n)}})[0];
    KeyValueCache whole = p.make_cache();
    CHECK(largest_difference(p.extend({{&whole, first(n)}})[0], right[n]) < 1e-6);
  }
  // Token by token, beside a long text; what passes the original positions is read anew.
  KeyValueCache grows = p.make_cache(), beside = p.make_cache();
  p.extend({{&beside, first(20)}});
  for (int64_t n = 1; n <= 12; ++n) {
    CHECK(p.must_reread(grows, n) == (n == kOriginal + 1));
    std::vector<int32_t> next{tokens[static_cast<size_t>(n - 1)]};
    if (n == kOriginal + 1) {
      CHECK_THROWS_WITH(p.extend({{&grows, next}}),
                        Catch::Contains("recomputed before it grows to 11 tokens"));
      grows.clear();
      next = first(n);
    }
    const Logits both = p.extend({{&grows, next}, {&beside, {1}}});
    if (right.count(n)) CHECK(largest_difference(both[0], right[n]) < 1e-6);
    beside.length = 20;
  }
  // A text that is known to become long is turned so from its beginning.
  KeyValueCache known = p.make_cache();
  known.text_length = 12;
  p.extend({{&known, first(5)}});
  CHECK(largest_difference(p.extend({{&known, {tokens.begin() + 5, tokens.begin() + 12}}})[0], right[12]) <
        1e-6);
  CHECK(largest_difference(right[10], right[11]) > 1e-3);  // negative control
}

TEST_CASE("generation in fp32 has the loss of an evaluation") {
  TinyOptions o;
  o.seq = 64;
  o.vocab = 37;
  o.precision = "fp32";
  CHECK(worst_logits(o) < 1e-5);
}
