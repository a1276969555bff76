// How much of the communication of tensor parallelism a plan leaves exposed.
#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/machines/machine_profile.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/schedule_plan.h"
#include "runtime/program/recipe_program.h"
#include "runtime/recipe/derived.h"

using namespace ltrain;

namespace {

/// Llama 3.1 8B of fewer layers on nodes of eight H100.
Recipe llama(const std::vector<std::string>& more, int ranks = 8) {
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
  double exposed = 0;  ///< share of the time of all collectives of the tensor axis
  int64_t arena = 0;
  double seconds = 0;  ///< time of a step
};

Shares shares(std::vector<std::string> overrides, int ranks = 8) {
  const Plan plan = make_plan(llama(overrides, ranks), find_profile("h100"));
  Shares s;
  s.seconds = plan.step_seconds();
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
                 apart = shares({sequence, "train.global_batch_size=32", "parallel.overlap_micro_batches=off",
                                 "parallel.async_tensor_parallel=off"}),
                 alone =
                     shares({sequence, "train.global_batch_size=1", "parallel.async_tensor_parallel=off"});
    CHECK(turns.exposed < 0.1);
    CHECK(apart.exposed > 0.4);
    CHECK(apart.exposed < 0.7);  // backward hides its part
    CHECK(alone.exposed == Approx(apart.exposed).epsilon(0.15));
    // A forward goes no further than a layer beyond what backward has given back.
    CHECK(static_cast<double>(turns.arena) < 1.1 * static_cast<double>(apart.arena));
  }
}

TEST_CASE("a plan with tensor-parallel products in parts exposes less than half of what whole ones do",
          "[plan]") {
  const auto of = [&](const char* layout, const char* way, const char* sequence = "true") {
    return shares({std::string("parallel.sequence_parallel=") + sequence, "parallel.schedule=1f1b",
                   "train.global_batch_size=4", layout, std::string("parallel.async_tensor_parallel=") + way},
                  std::string_view(layout) == "parallel.pipeline=2" ? 16 : 8);
  };
  // Two stages of 1F1B; one micro-batch a step.
  for (const char* layout : {"parallel.pipeline=2", "train.global_batch_size=1"}) {
    INFO(layout);
    const Shares parts = of(layout, "auto"), whole = of(layout, "off");
    INFO(parts.exposed << " of " << whole.exposed << ", " << parts.seconds << " of " << whole.seconds
                       << " s");
    CHECK(whole.exposed > 0.4);
    CHECK(parts.exposed < 0.45 * whole.exposed);
    CHECK(parts.seconds < 0.95 * whole.seconds);
    CHECK(of(layout, "auto", "false").seconds == of(layout, "off", "false").seconds);  // only where asked for
  }
  const auto said = [](const std::vector<std::string>& more) {
    std::vector<std::string> settings{"parallel.sequence_parallel=true", "train.global_batch_size=4"};
    settings.insert(settings.end(), more.begin(), more.end());
    return make_plan(llama(settings), find_profile("h100")).overlap;
  };
  CHECK(said({"train.global_batch_size=1"}).find("(parallel.async_tensor_parallel)") != std::string::npos);
  CHECK(said({}).find("(parallel.overlap_micro_batches)") != std::string::npos);
  CHECK(said({"parallel.overlap_micro_batches=off", "parallel.async_tensor_parallel=off"}).empty());
  // `auto` leaves pairs to a schedule's file, which may have none.
  const Recipe turns = llama({"train.global_batch_size=4"});
  CHECK_FALSE(recipe::overlap_text(turns, true).empty());
  CHECK(recipe::overlap_text(turns, false).empty());
  // Overlapped micro-batches hide more, and matmuls are not chunked.
  CHECK(of("parallel.pipeline=1", "auto").exposed == of("parallel.pipeline=1", "off").exposed);
  CHECK(of("parallel.pipeline=1", "on").exposed > of("parallel.pipeline=1", "off").exposed);
}

namespace {

/// Mixtral 8x7B of 16 layers on 16 H100: in a V of two ranks, experts over eight cards on two nodes.
Recipe mixtral(const std::string& overlap, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides{"name=mixtral",
                                     "device=cpu",
                                     "precision=bf16",
                                     "data.seq_length=4096",
                                     "train.micro_batch_size=1",
                                     "train.global_batch_size=128",
                                     "model.architecture=mixtral",
                                     "model.vocab_size=32000",
                                     "model.hidden_size=4096",
                                     "model.intermediate_size=14336",
                                     "model.num_hidden_layers=16",
                                     "model.num_attention_heads=32",
                                     "model.num_key_value_heads=8",
                                     "model.max_position_embeddings=4096",
                                     "parallel.data=8",
                                     "parallel.expert=8",
                                     "parallel.pipeline=2",
                                     "parallel.virtual_pipeline=2",
                                     "parallel.zero_stage=1",
                                     "parallel.schedule=dualpipev",
                                     "parallel.overlap_micro_batches=" + overlap};
  overrides.insert(overrides.end(), more.begin(), more.end());
  Recipe r = resolve(parse_recipe("", "mixtral", overrides), 16, 4);
  r.device = DeviceChoice::cuda;
  return r;
}

double exposed(const RankPlan& rank, std::string_view axis) {
  for (const auto& [of, seconds] : rank.exposed)
    if (of == axis) return seconds;
  return 0;
}

}  // namespace

TEST_CASE("a plan of dualpipev hides most of the experts' all-to-all beside other micro-batches", "[plan]") {
  const MachineProfile profile = find_profile("h100");
  const Plan turns = make_plan(mixtral("auto"), profile), apart = make_plan(mixtral("off"), profile);
  REQUIRE(turns.ranks.size() == apart.ranks.size());
  for (size_t i = 0; i < turns.ranks.size(); ++i) {
    INFO("rank " << turns.ranks[i].rank);
    CHECK(turns.ranks[i].train_wire_bytes == apart.ranks[i].train_wire_bytes);
    CHECK(exposed(turns.ranks[i], "ep") < 0.5 * exposed(apart.ranks[i], "ep"));
    // A forward goes no further than a layer beyond what backward has given back.
    CHECK(static_cast<double>(turns.ranks[i].arena.arena_bytes) <
          1.1 * static_cast<double>(apart.ranks[i].arena.arena_bytes));
  }
  // The step is shorter by what is hidden, but for bubbles: pairs are not priced as the sum of their two.
  const double hidden = exposed(apart.ranks[0], "ep") - exposed(turns.ranks[0], "ep");
  CHECK(apart.step_seconds() - turns.step_seconds() > 0.7 * hidden);
  CHECK(turns.step_seconds() < 0.97 * apart.step_seconds());
}

TEST_CASE("a pair of a plan takes what its rank's pass took, and before that what its layers say", "[plan]") {
  const MachineProfile profile = find_profile("h100");
  const Recipe recipe = mixtral("auto");
  PipelinePlan planned = plan_pipeline(recipe, profile);
  const pipeline::Schedule& schedule = planned.layout.schedule;
  REQUIRE(schedule.has_pairs());
  CHECK(without_pairs(schedule).order == plan_pipeline(mixtral("off"), profile).layout.schedule.order);
  std::vector<RankPlan> ranks;
  for (const int rank : ranks_to_plan(recipe, profile))
    ranks.push_back(plan_rank(recipe, profile, planned.layout, rank, threads_per_rank(recipe)));
  const pipeline::Timing before = planned.timing;
  place_actions(ranks, recipe, profile, planned);
  int pairs = 0;
  for (size_t r = 0; r < schedule.order.size(); ++r)
    for (size_t i = 0; i < schedule.order[r].size(); ++i) {
      if (!schedule.order[r][i].with_next) continue;
      ++pairs;
      const auto took = [&](const pipeline::Timing& t) { return t.end[r][i] - t.start[r][i]; };
      double pass = 0;  // the slowest rank
      for (const RankPlan& rank : ranks)
        if (mesh_of(recipe, rank.rank).coordinate(Axis::pipeline) == static_cast<int>(r)) {
          pass = std::max(pass, rank.actions[i].seconds);
          CHECK(rank.actions[i + 1].seconds == 0);
        }
      INFO("rank " << r << ", " << to_string(schedule.order[r][i]));
      CHECK(took(planned.timing) == Approx(pass).epsilon(1e-9));
      CHECK(took(before) == Approx(took(planned.timing)).epsilon(0.1));  // W and choice go by this
      const auto alone = [&](const pipeline::Action& a) {
        return a.kind == pipeline::ActionKind::forward
                   ? planned.costs.forward[a.stage]
                   : planned.costs.input[a.stage] + planned.costs.weight[a.stage];
      };
      CHECK(took(planned.timing) < 0.95 * (alone(schedule.order[r][i]) + alone(schedule.order[r][i + 1])));
    }
  CHECK(pairs > 40);
}

TEST_CASE("a plan of ZeRO-1 and 2 gathers what others have updated beside the next forward", "[plan]") {
  const auto plan = [](const std::string& stage, const std::string& more = "seed=1", bool captured = false) {
    Recipe r = llama({"parallel.tensor=1", "parallel.data=8", "train.global_batch_size=8", stage, more});
    r.cuda_graphs = captured ? OverlapChoice::on : OverlapChoice::off;
    return make_plan(r, find_profile("h100"));
  };
  const Plan none = plan("parallel.zero_stage=0"), one = plan("parallel.zero_stage=1"),
             two = plan("parallel.zero_stage=2");
  for (const Plan* p : {&one, &two}) {
    double gathers = 0, exposed = 0;
    for (const CollectivePlan& c : p->ranks[0].collectives)
      if (c.op == "all_gather") gathers += c.seconds;
    for (const auto& [axis, seconds] : p->ranks[0].exposed) exposed += seconds;
    double sums = 0;  // gradients, a part of which is exposed whatever becomes of the gathers
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
    Recipe r = llama({"model.num_hidden_layers=16", "parallel.tensor=1", "parallel.pipeline=4",
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
