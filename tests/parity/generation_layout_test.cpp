// Generation over several ranks: each rank has the logits that one process has, in whatever parts texts come.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Results of the model on a rank: logits, and log-likelihoods of the scored text.
using Said = std::vector<std::vector<double>>;

ProgramOptions options_of(const TinyOptions& o) {
  ProgramOptions p = tiny_program(o);
  p.for_training = false;
  p.sharding = {};
  return p;
}

Said ask(TrainProgram& p, const std::vector<int32_t>& text) {
  Said said;
  const auto keep = [&](const std::vector<std::vector<float>>& logits) {
    for (const auto& l : logits) said.emplace_back(l.begin(), l.end());
  };
  KeyValueCache first = p.make_cache(), second = p.make_cache();
  const auto half = text.begin() + static_cast<int64_t>(text.size()) / 2;
  keep(p.extend({{&first, {text.begin(), half}}}));
  keep(p.extend({{&second, {text.begin(), text.begin() + 3}}, {&first, {*half}}}));
  keep(p.extend({{&first, {half[1]}}, {&second, {text[3]}}}));  // together
  first.length = 0;
  std::vector<double> scores;
  const std::vector<int32_t> targets(text.begin() + 1, text.end());
  for (const TokenScore& s : p.score(first, {text.begin(), text.end() - 1}, targets))
    scores.push_back(s.log_probability);
  said.push_back(std::move(scores));
  return said;
}

/// Results by rank. Each rank's memory is what its plan on meta says.
std::vector<Said> ask_all(TinyOptions o) {
  o.global_batch = o.micro_batch * o.ranks;
  o.schedule = "gpipe";
  const std::vector<int32_t> text = tiny_sample(o, 0);
  const int world = tiny_world(o);
  std::vector<Said> said(static_cast<size_t>(world));
  ThreadGroups all;
  on_threads(world, [&](int rank) {
    const ProgramOptions options = options_of(o);
    const Mesh mesh = tiny_mesh(o, rank);
    int64_t bytes = 0;
    {
      MetaTrace trace;
      auto compute = make_meta_stream("compute", trace);
      const GroupSet groups = make_meta_groups(mesh, trace, group_options(options));
      MetaMemory memory(trace);
      TrainProgram program(options, {*compute, memory, groups.groups()});
      KeyValueCache first = program.make_cache(), second = program.make_cache();
      program.extend({{&first, {}}});
      first.length = 0;
      program.score(first, {}, {});
      bytes = memory.peak().arena_bytes;
    }
    auto compute = make_inline_stream("compute");
    CpuArena arena(bytes);
    GroupSet groups = all.on(mesh, group_options(options));
    TrainProgram program(options, {*compute, arena, groups.groups()});
    program.initialize();
    said[static_cast<size_t>(rank)] = ask(program, text);
    groups.synchronize();
  });
  return said;
}

double largest_difference(const Said& a, const Said& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    for (size_t k = 0; k < a[i].size(); ++k) most = std::max(most, std::abs(a[i][k] - b[i][k]));
  }
  return most;
}

/// The largest difference of any rank of the layout from one process.
double worst(const TinyOptions& layout) {
  TinyOptions alone = layout;
  alone.ranks = alone.tensor = alone.pipeline = alone.expert = 1;
  const Said want = ask_all(alone)[0];
  const std::vector<Said> got = ask_all(layout);
  double most = 0;
  for (const Said& said : got) {
    CHECK(said == got[0]);  // bit for bit: each rank draws the same token
    most = std::max(most, largest_difference(said, want));
  }
  return most;
}

TinyOptions tiny(int tensor, int pipeline) {
  TinyOptions o;
  o.seq = 21;
  o.vocab = 37;  // divides over no axis
  o.layers = 3;
  o.tensor = tensor, o.pipeline = pipeline;
  return o;
}

}  // namespace

TEST_CASE("generation over tensor and pipeline ranks has one process's logits, on every rank") {
  for (const char* architecture : {"gpt2", "llama", "qwen3", "phi3"})
    for (const auto& [tensor, pipeline] :
         {std::pair(2, 1), std::pair(4, 1), std::pair(1, 2), std::pair(1, 3), std::pair(2, 2)}) {
      TinyOptions o = tiny(tensor, pipeline);
      o.architecture = architecture;
      INFO(architecture << ", tensor " << tensor << ", pipeline " << pipeline);
      CHECK(worst(o) < 1e-6);  // fp32 logits of about 1, computed in fp64
    }
}

TEST_CASE(
    "generation over several ranks with tied embeddings, windows, and fewer key-value heads than ranks") {
  TinyOptions o = tiny(4, 1);
  SECTION("two key-value heads over four ranks") { o.kv_heads = 2; }
  SECTION("one") { o.kv_heads = 1; }
  SECTION("tied, over stages") { o.tied = true, o.tensor = 2, o.pipeline = 2; }
  SECTION("windows and layers without positions") { o.window = 5, o.without_positions = true; }
  CHECK(worst(o) < 1e-6);
}

TEST_CASE("generation over ranks that have experts of their own") {
  TinyOptions o = tiny(1, 1);
  o.architecture = "mixtral";
  o.moe.num_experts = 4;
  SECTION("two") { o.ranks = o.expert = 2; }
  SECTION("four, two of them tensor ranks") { o.ranks = 2, o.expert = 2, o.tensor = 2; }
  SECTION("over stages") { o.ranks = o.expert = 2, o.pipeline = 2; }
  SECTION("data ranks that have the same") { o.ranks = 2; }
  CHECK(worst(o) < 1e-6);
}

TEST_CASE("negative control: a model of other weights does not have the same logits") {
  TinyOptions o = tiny(2, 1), other = o;
  other.architecture = "qwen3";
  const Said a = ask_all(o)[0], b = ask_all(other)[0];
  CHECK(largest_difference(a, b) > 1e-4);
}
