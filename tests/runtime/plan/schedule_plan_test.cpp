// The schedule of a recipe: its costs out of the meta pass, its file, `auto`. Recipes get their pipeline
// ranks after parsing, since this build's parser takes one only.
#include "runtime/plan/schedule_plan.h"
#include "base/json/json.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <numeric>
#include <set>

#include "base/error.h"
#include "parallel/pipeline/schedule_csv.h"
#include "runtime/launch/cgroup.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/program/recipe_program.h"
#include "tests/support/temporary_file.h"

using namespace ltrain;
using Catch::Contains;
using nlohmann::json;

namespace {

Recipe staged_recipe(int pipeline, const std::string& schedule, int chunks = 1) {
  Recipe r = resolve(
      parse_recipe("model: {architecture: llama, vocab_size: 4096, hidden_size: 64, intermediate_size: 160, "
                   "num_hidden_layers: 8, num_attention_heads: 4, max_position_embeddings: 64}\n"
                   "data: {seq_length: 32}\n"
                   "train: {micro_batch_size: 2, global_batch_size: 16}\nlaunch: {threads_per_rank: 2}\n",
                   "r.yaml"),
      1);
  r.parallel.pipeline = r.launch.ranks_on_host = pipeline;
  r.parallel.schedule = schedule;
  r.parallel.virtual_pipeline = chunks;
  return r;
}

SchedulePlan schedule_of(const Recipe& r) { return plan_schedule(r, layer_costs(r, builtin_profile(2))); }

double sum(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

}  // namespace

TEST_CASE("layer costs add up to the planned step", "[plan]") {
  const Recipe r = staged_recipe(4, "1f1b");
  const pipeline::LayerCosts c = layer_costs(r, builtin_profile(2));
  REQUIRE(c.layers() == 8);
  for (int i = 0; i < 8; ++i) {
    CHECK(c.forward[i] > 0);
    CHECK(c.input[i] > c.forward[i] / 2);
    CHECK(c.weight[i] > c.forward[i] / 4);
    if (i > 0) CHECK(c.forward[i] == Approx(c.forward[1]));  // the first one adds no residual
  }
  CHECK(c.first_input > 0);                  // the embedding's gradient does not wait
  CHECK(c.last_forward > c.forward[0]);      // a vocabulary of 4096
  CHECK(c.last_input + c.last_weight == 0);  // the head's backward is part of its forward
  Recipe whole = r;
  whole.parallel.pipeline = 1;
  whole.train.global_batch_size = 2;
  double step = 0;
  for (const TraceEntry& e : step_entries(whole, builtin_profile(2), 0))
    if (e.layer != "optimizer" && e.layer != "gradients" && e.layer != "loss") step += e.seconds;
  CHECK(sum(c.forward) + sum(c.input) + sum(c.weight) + c.first_forward + c.first_input + c.first_weight +
            c.last_forward + c.last_input + c.last_weight ==
        Approx(step));
}

TEST_CASE("actions of a pipeline wait for the collectives of its other axes", "[plan]") {
  // One micro-batch, forward and backward, in one stage; and over two, one after the other.
  // Links that are slow enough to be waited for, and sums of gradients, which the last micro-batch has beside
  // it, that take nothing from compute.
  DeviceProfile card = *card_profile("h100").device;
  card.overlap.value = 0;
  card.links[0].bytes_per_second.value /= 20;
  card.links[0].all_reduce.points.clear();
  const MachineProfile h100 = profile_of_device(std::make_shared<const DeviceProfile>(card));
  const auto seconds = [&](const Recipe& r) { return make_plan(r, h100).step_seconds(); };
  Recipe r = staged_recipe(1, "1f1b");
  r.train.global_batch_size = 2;
  r.device = DeviceChoice::cuda;
  // Large enough that what a step does once (the norm, the update) is little.
  r.model.hidden_size = 2048, r.model.intermediate_size = 8192, r.model.num_attention_heads = 16;
  r.model.num_key_value_heads = 16, r.model.head_dim = 128;
  r.data.seq_length = r.model.max_position_embeddings = 1024;
  SECTION("tensor") { r.parallel.tensor = 2; }
  SECTION("tensor, sequence parallel") { r.parallel.tensor = 2, r.parallel.sequence_parallel = true; }
  SECTION("context") { r.parallel.context = 2; }
  r.launch.ranks_on_host = 4;
  Recipe stages = r;
  stages.parallel.pipeline = 2;
  const double one = seconds(r), two = seconds(stages);
  // Time on the timeline of one stage: from the embedding's forward to its backward.
  double begin = 1e9, end = 0, ops = 0;
  for (const TraceEntry& e : step_entries(r, h100, 0)) {
    if (e.stream != "compute" ||
        (e.layer != "embedding" && e.layer != "head" && e.layer.rfind("layers.", 0) != 0))
      continue;
    begin = std::min(begin, e.start);
    end = std::max(end, e.start + e.seconds);
    ops += e.seconds;
  }
  REQUIRE(end - begin > 1.01 * ops);  // the rest are waits
  const pipeline::LayerCosts c = layer_costs(stages, h100);
  const double costs = sum(c.forward) + sum(c.input) + sum(c.weight) + c.first_forward + c.first_input +
                       c.first_weight + c.last_forward + c.last_input + c.last_weight;
  CHECK(costs == Approx(end - begin).epsilon(0.005));  // the last micro-batch waits for gradients a little
  // The update is of half the parameters on each rank, which makes two stages a little faster.
  CHECK(two < 1.02 * one + 2 * c.transfer[1]);
  CHECK(two > costs + 2 * c.transfer[1]);
}

TEST_CASE("transfers between stages are priced by where the two ranks meet", "[plan]") {
  const MachineProfile h100 = card_profile("h100");
  Recipe r = staged_recipe(16, "1f1b");
  r.device = DeviceChoice::cuda;
  r.parallel.tensor = 2;
  r.parallel.data = 4;
  r.launch.ranks_on_host = 8;
  const std::vector<double> seconds = transfer_seconds(r, h100);
  REQUIRE(seconds.size() == 16 * 16);
  const Mesh mesh = mesh_of(r, 0);
  const ProfileCost cost(h100, threads_per_rank(r), false, 8, mesh.world());
  std::set<double> different;
  for (int from = 0; from < 16; ++from)
    for (int to = 0; to < 16; ++to) {
      const std::vector<int> ranks{mesh.at(Axis::pipeline, from), mesh.at(Axis::pipeline, to)};
      OpCost move;
      move.name = move.collective = "send";
      move.cls = OpClass::collective;
      move.dtype = precision_policy(std::string(to_string(r.precision))).compute;
      move.group_size = 2;
      move.bytes = move.wire_bytes = static_cast<double>(2 * 32 * 64 * dtype_size(move.dtype));
      move.network_bytes = ranks[0] / 8 != ranks[1] / 8 ? move.wire_bytes : 0;
      move.ranks = &ranks;
      CAPTURE(from, to);
      CHECK(seconds[static_cast<size_t>(16 * from + to)] == ProfileCost(cost).seconds(move));
      different.insert(seconds[static_cast<size_t>(16 * from + to)]);
    }
  CHECK(different.size() >= 2);  // within a node, between nodes
}

TEST_CASE("a pipeline's step is as long as what ZeRO moves for its micro-batches", "[plan]") {
  DeviceProfile card = *card_profile("h100").device;
  card.links[0].bytes_per_second.value /= 200;
  card.links[0].all_reduce.points.clear();
  const MachineProfile h100 = profile_of_device(std::make_shared<const DeviceProfile>(card));
  Recipe r = staged_recipe(1, GENERATE(as<std::string>(), "1f1b", "interleaved", "zb-h1"));
  if (r.parallel.schedule == "interleaved") r.parallel.virtual_pipeline = 2;
  r.device = DeviceChoice::cuda;
  r.parallel.zero_stage = GENERATE(2, 3);
  r.parallel.pipeline = r.parallel.data = 2;
  r.train.global_batch_size = 8 * r.train.micro_batch_size * r.parallel.data;
  r.launch.ranks_on_host = 4;
  const Plan plan = make_plan(r, h100);
  REQUIRE(plan.ranks.size() > 1);
  for (const RankPlan& rank : plan.ranks) {
    double moved = 0;  // one after the other on the stream of the data axis
    for (const CollectivePlan& c : rank.collectives)
      if (c.axis == "data") moved += c.seconds;
    REQUIRE(moved > 0);
    REQUIRE(rank.exposed_comm_seconds() > 0);
    CHECK(rank.step_seconds >= moved);
    CHECK(rank.step_seconds >= rank.exposed_comm_seconds());
  }
}

TEST_CASE("stages with experts on all data ranks are priced by two micro-batches of each of them", "[plan]") {
  for (const std::vector<std::string>& dispatch : std::vector<std::vector<std::string>>{
           {}, {"parallel.expert_dispatch=all_gather"}, {"parallel.hierarchical_all_to_all=2"}}) {
    std::vector<std::string> overrides{"parallel.data=4", "parallel.expert=4", "model.moe.num_experts=4",
                                       "parallel.pipeline=2"};
    overrides.insert(overrides.end(), dispatch.begin(), dispatch.end());
    const Recipe r =
        resolve(parse_recipe("device: cpu\nmodel: {architecture: llama, vocab_size: 257, hidden_size: 32, "
                             "intermediate_size: 64, num_hidden_layers: 4, num_attention_heads: 4, "
                             "max_position_embeddings: 32}\ndata: {seq_length: 32}\n"
                             "train: {micro_batch_size: 1, global_batch_size: 16}\n",
                             "r.yaml", overrides),
                8);
    INFO(overrides.back());
    const pipeline::LayerCosts c = layer_costs(r, builtin_profile(2));
    CHECK(c.layers() == 4);
    CHECK(sum(c.forward) > 0);
    CHECK(make_plan(r, builtin_profile(2)).step_seconds() > 0);
  }
}

TEST_CASE("what a pipeline's backward computes again is in the time of its actions", "[plan]") {
  Recipe r = staged_recipe(2, "1f1b");
  const auto step = [&](std::optional<RecomputeOptions> o) {
    const pipeline::LayerCosts c = layer_costs(r, builtin_profile(2), o);
    return plan_schedule(r, c).timing.step;
  };
  const double nothing = step({}), all = step(RecomputeOptions{1, -1, {}}),
               half = step(RecomputeOptions{1, 2, {}});
  const double forward = sum(layer_costs(r, builtin_profile(2)).forward);
  CHECK(all > nothing + forward / 2);  // bytes of a stage's layers, for each of its micro-batches
  CHECK((half - nothing) / (all - nothing) == Approx(0.5).epsilon(0.15));  // two of a stage's four layers
}

TEST_CASE("recompute: auto on a pipeline asks what fits a stage, not the whole model", "[plan]") {
  Recipe r = staged_recipe(2, "1f1b");
  const Plan stored = make_plan(r, builtin_profile(2));
  r.recompute.granularity = RecomputeGranularity::automatic;
  r.recompute.budget = fmt::format("{} MiB", stored.ranks[0].total_bytes / (1 << 20) + 1);
  const Plan fits = make_plan(r, builtin_profile(2));
  CHECK(fits.ranks[0].total_bytes == stored.ranks[0].total_bytes);  // the whole model on one rank would not
  Recipe whole = r;                                                 // does not fit
  whole.parallel.pipeline = 1;
  CHECK_THROWS_WITH(make_plan(whole, builtin_profile(2)), Contains("recompute.budget"));
}

TEST_CASE("a recipe's schedule: drawn, in JSON, with its stages", "[plan]") {
  for (const auto& [name, chunks] :
       {std::pair{"1f1b", 1}, {"interleaved", 2}, {"zbv", 2}, {"dualpipev", 2}}) {
    SchedulePlan p = schedule_of(staged_recipe(4, name, chunks));
    p.costs = "test costs";
    CHECK(p.schedule.name == name);
    CHECK(p.schedule.micros == 8);
    CHECK(std::accumulate(p.staged.layers.begin(), p.staged.layers.end(), 0) == 8);
    const std::string text = schedule_text(p, 100);
    CHECK_THAT(text, Contains("test costs") && Contains("rank 3 ") && Contains("peak activations") &&
                         Contains("bubble "));
    const json j = json::parse(schedule_json(p));
    CHECK(j["schema"] == "ltrain.schedule.v1");
    CHECK(j["by_rank"].size() == 4);
    CHECK(j["by_rank"][0]["actions"].size() == p.schedule.order[0].size());
    CHECK(j["stages"].size() == static_cast<size_t>(4 * chunks));
    CHECK(j["bubble_share"].get<double>() == Approx(p.timing.bubble_share));
  }
}

TEST_CASE("layers by hand are taken", "[plan]") {
  Recipe r = staged_recipe(4, "1f1b");
  r.parallel.pipeline_layers = {3, 2, 2, 1};
  CHECK(schedule_of(r).staged.layers == std::vector<int>{3, 2, 2, 1});
  r.parallel.pipeline_layers = {3, 2, 2, 2};
  CHECK_THROWS_WITH(schedule_of(r),
                    Contains("parallel.pipeline_layers: makes 9 layers in all, and the model has 8"));
}

TEST_CASE("auto shows what it tried", "[plan]") {
  const SchedulePlan p = schedule_of(staged_recipe(2, "auto"));
  CHECK(p.tried.size() > 5);
  CHECK(p.tried[0].chosen);
  CHECK_THAT(schedule_text(p, 80), Contains("auto tried (* taken)\n") && Contains("* " + p.schedule.name));
  CHECK(p.staged.costs.transfer.size() == 4);
  CHECK(p.staged.costs.transfer[1] > 0);
  CHECK(p.staged.costs.activation[0] > 64 * 32 * 2 * 4);  // bytes, more than one tensor
  const SchedulePlan fixed = schedule_of(staged_recipe(2, "gpipe"));
  CHECK(p.timing.step <= fixed.timing.step * (1 + 1e-9));
}

TEST_CASE("auto takes what fits into the memory beside all else", "[plan]") {
  const Recipe r = staged_recipe(2, "auto");
  const MachineProfile profile = builtin_profile(2);
  CHECK(activation_limit(staged_recipe(2, "1f1b"), profile).empty());
  const std::vector<double> limit = activation_limit(r, profile);
  REQUIRE(limit.size() == 2);
  CHECK(limit[0] > 0);
  CHECK(limit[0] < static_cast<double>(host_memory_bytes()) / 2);
  const pipeline::LayerCosts costs = layer_costs(r, profile);
  const SchedulePlan free = plan_schedule(r, costs, limit);
  CHECK(free.tried[0].refused.empty());
  // A byte less than the fastest keeps: another one is taken, and the fastest is listed with its reason.
  const double most = free.tried[0].peak_kept - 1;
  const SchedulePlan tight = plan_schedule(r, costs, {most, most});
  CHECK(tight.tried[0].peak_kept <= most);
  CHECK(tight.schedule.name != free.schedule.name);
  CHECK_THAT(schedule_text(tight, 80), Contains("keeps ") && Contains(" fit"));
  CHECK_THROWS_WITH(plan_schedule(r, costs, {1, 1}), Contains("no pipeline schedule fits"));
}

TEST_CASE("what stages hand on is priced by where they are and by what a rank has of it", "[plan]") {
  MachineProfile profile = builtin_profile(2);
  profile.network_bytes_per_second = 1e6;  // far slower than anything on a host
  Recipe r = staged_recipe(4, "1f1b");
  r.launch.ranks_on_host = 2;  // stages 0 and 1, 2 and 3
  const std::vector<double> t = layer_costs(r, profile).transfer;
  REQUIRE(t.size() == 16);
  const double bytes = 2 * 32 * 64 * 4;
  CHECK(t[1] < 0.1 * t[1 * 4 + 2]);
  CHECK(t[2 * 4 + 3] == t[1]);
  CHECK(t[1 * 4 + 2] == Approx(profile.network_seconds + bytes * 2 / 1e6));  // two ranks share the network
  r.parallel.tensor = 4;
  r.parallel.tensor_mode = TensorModeChoice::two_d;
  r.launch.ranks_on_host = 4;  // a stage a host
  CHECK(layer_costs(r, profile).transfer[1] == Approx(profile.network_seconds + bytes / 4 * 4 / 1e6));
}

TEST_CASE("one pipeline rank has one order", "[plan]") {
  for (const char* name : {"zbv", "auto", "gpipe"})
    CHECK(schedule_of(staged_recipe(1, name)).schedule.name == "1f1b");
}

TEST_CASE("a schedule file is used, and must be for the recipe's numbers", "[plan]") {
  const pipeline::Schedule zbv = pipeline::make_schedule("zbv", 2, 2, 8);
  const test::TemporaryFile file(pipeline::write_schedule_csv(zbv));
  Recipe r = staged_recipe(2, "1f1b");
  r.parallel.schedule_file = file.path;
  const SchedulePlan p = schedule_of(r);
  CHECK(p.schedule.order == zbv.order);
  // A file is run as it is; by name, the weight parts go where a rank waits.
  const SchedulePlan by_name = schedule_of(staged_recipe(2, "zbv", 2));
  CHECK(p.timing.makespan == Approx(pipeline::simulate(zbv, by_name.staged.costs).makespan));
  CHECK(p.timing.makespan >= by_name.timing.makespan * (1 - 1e-9));
  r.parallel.pipeline = 4;
  CHECK_THROWS_WITH(schedule_of(r), Contains("is for 2 ranks, and the recipe has 4 (parallel.pipeline)"));
  r.parallel.pipeline = 2;
  r.train.global_batch_size = 12;
  CHECK_THROWS_WITH(schedule_of(r), Contains("is for 8 micro-batches, and the recipe has 6"));
  r.parallel.schedule_file = file.path + ".missing";
  CHECK_THROWS_WITH(schedule_of(r), Contains("parallel.schedule_file: ") && Contains("No such file"));
  r.parallel.schedule_file = std::filesystem::temp_directory_path().string();
  CHECK_THROWS_AS(schedule_of(r), Error);
  const test::TemporaryFile broken("0F0,0B0,1F0\n");
  r.parallel.schedule_file = broken.path;
  CHECK_THROWS_WITH(schedule_of(r), Contains("which take at least"));
}
