// How much of the communication of tensor parallelism a plan leaves exposed.
#include <catch2/catch.hpp>

#include "runtime/plan/machine_profile.h"
#include "runtime/plan/plan.h"

using namespace ltrain;

namespace {

/// Llama 3.1 8B of fewer layers on nodes of eight H100.
Recipe recipe(const std::vector<std::string>& more, int ranks = 8) {
  std::vector<std::string> overrides{"name=llama",
                                     "device=cpu",
                                     "precision=bf16",
                                     "data.seq_length=8192",
                                     "train.micro_batch_size=1",
                                     "model.architecture=llama",
                                     "model.vocab_size=128256",
                                     "model.hidden_size=4096",
                                     "model.intermediate_size=14336",
                                     "model.num_hidden_layers=8",
                                     "model.num_attention_heads=32",
                                     "model.num_key_value_heads=8",
                                     "model.max_position_embeddings=131072",
                                     "parallel.tensor=8"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  Recipe r = resolve(parse_recipe("", "llama", overrides), ranks, 8);
  r.device = DeviceChoice::cuda;
  return r;
}

struct Shares {
  double exposed = 0;  ///< of the time of all collectives of the tensor axis
  int64_t arena = 0;
};

Shares shares(std::vector<std::string> overrides) {
  const Plan plan = make_plan(recipe(overrides), find_profile("h100"));
  Shares s;
  double all = 0;
  for (const CollectivePlan& c : plan.ranks[0].collectives)
    if (c.axis == "tensor") all += c.seconds;
  for (const auto& [axis, seconds] : plan.ranks[0].exposed)
    if (axis == "tp") s.exposed += seconds;
  REQUIRE(all > 0);
  s.exposed /= all;
  s.arena = plan.ranks[0].arena.arena_bytes;
  return s;
}

}  // namespace

TEST_CASE("with micro-batches by turns a plan of tensor parallelism leaves a tenth of it exposed", "[plan]") {
  for (const char* sequence : {"parallel.sequence_parallel=true", "parallel.sequence_parallel=false"}) {
    INFO(sequence);
    const Shares turns = shares({sequence, "train.global_batch_size=32"}),
                 apart =
                     shares({sequence, "train.global_batch_size=32", "parallel.overlap_micro_batches=off"}),
                 alone = shares({sequence, "train.global_batch_size=1"});
    CHECK(turns.exposed < 0.1);
    CHECK(apart.exposed > 0.4);
    CHECK(apart.exposed < 0.7);  // backward hides its part
    CHECK(alone.exposed == Approx(apart.exposed).epsilon(0.15));
    // A forward goes no further than a layer beyond what backward has given back.
    CHECK(static_cast<double>(turns.arena) < 1.1 * static_cast<double>(apart.arena));
  }
}

TEST_CASE("a plan of ZeRO-1 and 2 gathers what others have updated beside the next forward", "[plan]") {
  const auto plan = [](const std::string& stage, const std::string& more = "seed=1", bool captured = false) {
    Recipe r = recipe({"parallel.tensor=1", "parallel.data=8", "train.global_batch_size=8", stage, more});
    r.cuda_graphs = captured;
    return make_plan(r, find_profile("h100"));
  };
  const Plan none = plan("parallel.zero_stage=0"), one = plan("parallel.zero_stage=1"),
             two = plan("parallel.zero_stage=2");
  for (const Plan* p : {&one, &two}) {
    double gathers = 0, exposed = 0;
    for (const CollectivePlan& c : p->ranks[0].collectives)
      if (c.op == "all_gather") gathers += c.seconds;
    for (const auto& [axis, seconds] : p->ranks[0].exposed) exposed += seconds;
    double sums = 0;  // of gradients, of which a part is exposed whatever becomes of the gathers
    for (const auto& [axis, seconds] : none.ranks[0].exposed) sums += seconds;
    REQUIRE(gathers > 0.01);
    CHECK(exposed < sums + 0.25 * gathers);  // the embedding's, which the first op needs
  }
  // Captured layers wait for their own, too.
  const Plan captured = plan("parallel.zero_stage=1", "seed=1", true);
  CHECK(captured.ranks[0].exposed == one.ranks[0].exposed);
  CHECK(captured.step_seconds() == Approx(one.step_seconds()));
  // So do those of ZeRO-3 whose weights stay: what ZeRO-2 waits for, beside the same bytes.
  const Plan three = plan("parallel.zero_stage=3"),
             kept = plan("parallel.zero_stage=3", "parallel.reshard_after_forward=false");
  CHECK(kept.ranks[0].train_wire_bytes == two.ranks[0].train_wire_bytes);
  CHECK(kept.ranks[0].train_wire_bytes < three.ranks[0].train_wire_bytes);
  CHECK(kept.ranks[0].exposed_comm_seconds() == Approx(two.ranks[0].exposed_comm_seconds()).epsilon(0.05));
}

TEST_CASE("a plan of a pipeline waits for no gathers that the fill hides", "[plan]") {
  const auto plan = [](const std::string& schedule, int stage) {
    Recipe r = recipe({"model.num_hidden_layers=16", "parallel.tensor=1", "parallel.pipeline=4",
                       "parallel.data=8", "train.global_batch_size=64", "parallel.schedule=" + schedule,
                       fmt::format("parallel.zero_stage={}", stage)},
                      32);
    return make_plan(r, find_profile("h100"));
  };
  const auto exposed = [](const RankPlan& rank) {
    for (const auto& [axis, seconds] : rank.exposed)
      if (axis == "dp") return seconds;
    return 0.0;
  };
  for (const char* schedule : {"1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"}) {
    INFO(schedule);
    const Plan none = plan(schedule, 0), one = plan(schedule, 1);
    for (const RankPlan& rank : one.ranks) {
      INFO("rank " << rank.rank);
      double gathers = 0;
      for (const CollectivePlan& c : rank.collectives)
        if (c.op == "all_gather") gathers += c.seconds;
      REQUIRE(gathers > 3e-3);
      const double waited = exposed(rank);
      if (rank.rank == 0)
        CHECK(waited < exposed(none.ranks[0]) + 0.5 * gathers);  // the first layers, and sums at the end
      else
        CHECK(waited < 0.25 * gathers);
    }
    // An update of a part of the optimizer states is shorter than one of all.
    CHECK(one.step_seconds() < none.step_seconds());
  }
}
