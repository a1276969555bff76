// Mutation over every collective of the data-parallel step: one at a time is left out, made twice, or made
// over another group. The placement check must refuse each mutant on meta, before anything runs; what it let
// through would have to fail the parity check. None may survive both. The counts are printed
// (scripts/mutation.sh).
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <map>

#include "tests/parity/mutant_group.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

enum class Kind { remove, twice, other_axis, half_of_the_axis, whole_world, group_of_one };
constexpr std::pair<Kind, const char*> kKinds[] = {{Kind::remove, "removed"},
                                                   {Kind::twice, "doubled"},
                                                   {Kind::other_axis, "on another axis"},
                                                   {Kind::half_of_the_axis, "on half of the axis"},
                                                   {Kind::whole_world, "on all ranks"},
                                                   {Kind::group_of_one, "on a group of one"}};

/// The mesh of the meta passes: 4 data ranks by 2 tensor ranks (the tiny model replicated over tensor).
constexpr int kData = 4, kTensor = 2;

TinyOptions layout(int zero_stage, int accumulation, int ranks) {
  TinyOptions o;
  o.zero_stage = zero_stage;
  o.ranks = ranks;
  o.global_batch = 8;
  o.micro_batch = 8 / (ranks * accumulation);
  o.steps = 2;
  o.padded_targets = true;
  return o;
}

struct MetaRun {
  int64_t train_calls = 0, calls = 0;  ///< of a train step; with the eval step
  std::string target, refusal;
};

MetaRun run_on_meta(const TinyOptions& o, Mutation mutation, int64_t target,
                    std::unique_ptr<Communicator> other) {
  MetaTrace trace;
  trace.set_axis_size(Axis::data, kData);
  trace.set_axis_size(Axis::tensor, kTensor);
  auto compute = make_meta_stream("compute", trace), comm = make_meta_stream("comm", trace);
  MetaMemory memory(trace);
  MutantGroup group(make_recording_group(1, kData, "data", Axis::data), mutation, target, std::move(other));
  MetaRun run;
  try {
    TrainProgram program(tiny_program(o), {*compute, *comm, memory, group});
    program.train_step({}, tiny_adamw(1), false);
    run.train_calls = group.calls();
    program.evaluate(nullptr);
  } catch (const Error& e) {
    run.refusal = e.what();
  }
  run.calls = group.calls();
  run.target = group.target_name();
  return run;
}

MetaRun run_mutant(const TinyOptions& o, Kind kind, int64_t target) {
  switch (kind) {
    case Kind::remove:
      return run_on_meta(o, Mutation::remove, target, nullptr);
    case Kind::twice:
      return run_on_meta(o, Mutation::twice, target, nullptr);
    case Kind::other_axis:
      return run_on_meta(o, Mutation::elsewhere, target,
                         make_recording_group(1, kTensor, "tensor", Axis::tensor));
    case Kind::half_of_the_axis:
      return run_on_meta(o, Mutation::elsewhere, target,
                         make_recording_group(1, kData / 2, "half", Axis::data));
    case Kind::whole_world:
      return run_on_meta(o, Mutation::elsewhere, target,
                         make_recording_group(1, kData * kTensor, "world", Axis::data));
    case Kind::group_of_one:
      return run_on_meta(o, Mutation::elsewhere, target, make_recording_group(0, 1, "one", Axis::pipeline));
  }
  return {};
}

/// Do the numbers of a mutant differ from those of the program as it is?
bool parity_fails(const TinyResult& good, const TinyOptions& o, Mutation mutation, int64_t target) {
  TinyResult bad;
  try {
    bad = train_tiny(o, [&](std::unique_ptr<Communicator> group) {
      return std::make_unique<MutantGroup>(std::move(group), mutation, target);
    });
  } catch (const Error&) {
    return true;
  }
  const auto differ = [](double a, double b) { return !(std::abs(a - b) <= 1e-10 * std::abs(a)); };
  bool fails = differ(good.eval_loss, bad.eval_loss);
  for (size_t i = 0; i < good.losses.size(); ++i)
    fails = fails || differ(good.losses[i], bad.losses[i]) || differ(good.norms[i], bad.norms[i]);
  for (size_t i = 0; i < good.parameters.size(); ++i)
    fails = fails || std::abs(good.parameters[i] - bad.parameters[i]) > 1e-9;
  return fails;
}

}  // namespace

TEST_CASE("mutation: the placement check refuses every mutant of every collective of the step") {
  int64_t mutants = 0, refused = 0;
  std::vector<std::string> passed;
  for (int zero_stage : {0, 1})
    for (int accumulation : {1, 2}) {
      const TinyOptions o = layout(zero_stage, accumulation, kData);
      const MetaRun whole = run_on_meta(o, Mutation::none, -1, nullptr);
      REQUIRE(whole.refusal == "");
      REQUIRE(whole.train_calls >= 2 + 4);            // token count, sums, and several buckets
      REQUIRE(whole.calls == whole.train_calls + 2);  // eval: token count, sums
      std::map<std::string, int> by_kind;
      int64_t here = 0;
      for (const auto& [kind, name] : kKinds)
        for (int64_t target = 0; target < whole.calls; ++target) {
          const MetaRun run = run_mutant(o, kind, target);
          ++mutants, ++here;
          if (!run.refusal.empty()) {
            ++refused, ++by_kind[name];
          } else {
            passed.push_back(fmt::format("ZeRO {}, accumulation {}: {} #{} {}", zero_stage, accumulation,
                                         run.target, target, name));
          }
        }
      std::string line = fmt::format(
          "mutation on meta: ZeRO {}, accumulation {}, {} collectives, {} mutants; refused:", zero_stage,
          accumulation, whole.calls, here);
      for (const auto& [name, count] : by_kind) line += fmt::format(" {} {},", count, name);
      line.back() = ';';
      std::printf("%s\n", line.c_str());
    }
  std::printf("mutation on meta: %ld mutants, %ld refused by the placement check, %zu survivors\n",
              static_cast<long>(mutants), static_cast<long>(refused), passed.size());
  for (const std::string& p : passed) std::printf("  survivor: %s\n", p.c_str());
  CHECK(refused == mutants);
}

TEST_CASE("mutation: a collective left out or doubled changes the numbers, so parity is a second net") {
  int64_t mutants = 0, failed = 0, harmless = 0;
  std::vector<std::string> survivors;
  for (int zero_stage : {0, 1})
    for (int accumulation : {1, 2}) {
      const TinyOptions o = layout(zero_stage, accumulation, 2);
      const TinyResult good = train_tiny(o);
      const MetaRun whole = run_on_meta(o, Mutation::none, -1, nullptr);
      REQUIRE_FALSE(parity_fails(good, o, Mutation::none, -1));  // the wrapper itself changes nothing
      for (Mutation mutation : {Mutation::remove, Mutation::twice})
        for (int64_t target = 0; target < whole.calls; ++target) {
          // The first step's collective, or that of the evaluation at the end.
          const int64_t at = target < whole.train_calls ? target : target + (o.steps - 1) * whole.train_calls;
          const std::string op = run_on_meta(o, Mutation::none, target, nullptr).target;
          ++mutants;
          if (parity_fails(good, o, mutation, at)) {
            ++failed;
          } else if (mutation == Mutation::twice && op == "all_gather") {
            ++harmless;  // gathers the same values again: slower, not wrong, and the placement check refuses
                         // it
          } else {
            survivors.push_back(fmt::format("ZeRO {}, accumulation {}: {} #{} {}", zero_stage, accumulation,
                                            op, target,
                                            mutation == Mutation::remove ? "removed" : "doubled"));
          }
        }
    }
  std::printf(
      "mutation in fp64 parity: %ld mutants, %ld change the result, %ld repeat a gather (same result), %zu "
      "survivors\n",
      static_cast<long>(mutants), static_cast<long>(failed), static_cast<long>(harmless), survivors.size());
  for (const std::string& s : survivors) std::printf("  survivor: %s\n", s.c_str());
  CHECK(survivors.empty());
  CHECK(failed > 0);
}

TEST_CASE("a refusal names the op, the layer, the axis, what it has and the mend") {
  const TinyOptions o = layout(1, 1, kData);
  const MetaRun whole = run_on_meta(o, Mutation::none, -1, nullptr);
  CHECK(run_mutant(o, Kind::remove, 0).refusal ==
        "placement error: reading the token count in loss, axis data: needs R but 'token count' is P\n"
        "  mend: all-reduce 'token count' over data");
  CHECK(run_mutant(o, Kind::twice, 0).refusal ==
        "placement error: all_reduce in loss, axis data: takes P but 'token count' is R: it was reduced "
        "before, by "
        "all_reduce in loss\n  mend: remove one of the two reductions");
  // The last collective of the train step gathers the parameters of the last bucket.
  const std::string gather = run_mutant(o, Kind::remove, whole.train_calls - 1).refusal;
  CHECK_THAT(
      gather,
      Catch::Contains(
          "placement error: end of the update in optimizer, axis data: needs R but 'parameters, bucket"));
  CHECK_THAT(gather, Catch::Contains("is S(0)\n  mend: all-gather 'parameters, bucket"));
  CHECK_THAT(run_mutant(o, Kind::remove, 1).refusal,
             Catch::Contains("'gradients, bucket 0' is P (made partial by") &&
                 Catch::Contains("mend: all-reduce or reduce-scatter"));
  CHECK_THAT(run_mutant(o, Kind::half_of_the_axis, 0).refusal,
             Catch::Contains("group \"half\" has 2 ranks but the axis has 4"));
}
