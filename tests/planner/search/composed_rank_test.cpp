// Ranks composed of their first micro-batches against whole passes: bytes, and seconds of actions and steps.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "planner/search/enumerate.h"
#include "planner/search/layout.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/meta_rank.h"
#include "runtime/plan/schedule_plan.h"
#include "runtime/program/action_repeats.h"

using namespace ltrain;

namespace {

const std::string kSmallDense =
    "name: tiny\ndevice: cuda\nprecision: bf16\n"
    "model: {architecture: llama, vocab_size: 4096, hidden_size: 256, intermediate_size: 512, "
    "num_hidden_layers: 8, num_attention_heads: 8, num_key_value_heads: 4, max_position_embeddings: 512, "
    "tie_word_embeddings: true}\n"
    "data: {seq_length: 512, eval: [{path: held-out}]}\n"
    "train: {global_batch_size: 64, train_steps: 10, eval_interval: 5, eval_steps: 1}\n";
const std::string kSmallMoe =
    "name: tiny\ndevice: cuda\nprecision: bf16\n"
    "model: {architecture: mixtral, vocab_size: 4096, hidden_size: 256, intermediate_size: 512, "
    "num_hidden_layers: 4, num_attention_heads: 8, num_key_value_heads: 4, max_position_embeddings: 512, "
    "moe: {num_experts: 4, top_k: 2}}\n"
    "data: {seq_length: 512}\n"
    "train: {global_batch_size: 64, train_steps: 10}\n";

/// Ops and collectives that run in a step; 0 where a repeated one was found impossible.
size_t entries(const Recipe& r, const MachineProfile& profile, const PipelineLayout& layout, int rank,
               bool repeats) {
  MetaRank meta(r, profile, layout, mesh_of(r, rank), threads_per_rank(r),
                static_cast<int>(r.launch.ranks_on_host));
  if (repeats) meta.program.repeat_actions(meta.memory);
  try {
    meta.train_step();
  } catch (const ActionRepeats::Impossible&) {
    return 0;
  }
  return meta.trace.entries().size();
}

/// Checks that a plan with replayed actions has all figures of a whole pass.
void check_replayed(const RankPlan& a, const RankPlan& whole) {
  CHECK(a.arena.arena_bytes == whole.arena.arena_bytes);
  CHECK(a.arena.live_bytes == whole.arena.live_bytes);
  CHECK(a.arena.by_kind == whole.arena.by_kind);
  CHECK(a.arena.most_by_kind == whole.arena.most_by_kind);
  CHECK(a.total_bytes == whole.total_bytes);
  CHECK(a.train_wire_bytes == whole.train_wire_bytes);
  CHECK(a.eval_wire_bytes == whole.eval_wire_bytes);
  CHECK(a.placement_ops == whole.placement_ops);
  CHECK(a.figures.size() == whole.figures.size());
  const auto close = [](double x) { return Approx(x).epsilon(1e-9).margin(1e-12); };
  CHECK(a.model_flops == close(whole.model_flops));
  CHECK(a.step_seconds == close(whole.step_seconds));
  CHECK(a.states_out_bytes == close(whole.states_out_bytes));
  CHECK(a.exposed_offload_seconds == close(whole.exposed_offload_seconds));
  std::map<std::string, double> waits(a.exposed.begin(), a.exposed.end());
  for (const auto& [axis, seconds] : whole.exposed) {
    INFO(axis);
    CHECK(waits[axis] == close(seconds));
  }
  REQUIRE(a.others.size() == whole.others.size());
  for (size_t i = 0; i < a.others.size(); ++i) CHECK(a.others[i].wire_bytes == whole.others[i].wire_bytes);
  REQUIRE(a.collectives.size() == whole.collectives.size());
  for (size_t i = 0; i < a.collectives.size(); ++i) {
    const CollectivePlan &x = a.collectives[i], &y = whole.collectives[i];
    INFO(y.axis << " " << y.op);
    CHECK((x.axis == y.axis && x.op == y.op && x.group == y.group && x.calls == y.calls));
    CHECK((x.bytes == y.bytes && x.wire_bytes == y.wire_bytes && x.network_bytes == y.network_bytes));
    CHECK(x.seconds == close(y.seconds));
  }
  std::map<std::string, OpPlan> ops;
  for (const OpPlan& o : a.ops) ops[o.name] = o;
  REQUIRE(ops.size() == whole.ops.size());
  for (const OpPlan& y : whole.ops) {
    const OpPlan& x = ops[y.name];
    INFO(y.name);
    CHECK(x.calls == y.calls);
    CHECK((x.flops == close(y.flops) && x.bytes == close(y.bytes) && x.seconds == close(y.seconds)));
  }
}

}  // namespace

TEST_CASE("a rank that is composed of its first micro-batches has the bytes and the time of the whole pass",
          "[search][repeats]") {
  const auto [text, extra] = GENERATE(
      table<std::string, std::string>({{kSmallDense, "parallel.pipeline=2"},
                                       {kSmallDense, "optimizer.kind=sophia"},  // steps of two passes
                                       {kSmallDense, "offload.activations.device=cpu"},
                                       {kSmallDense, "optimizer.grad_dtype=bf16"},
                                       {kSmallMoe, "parallel.pipeline=2"}}));
  // Pairs of actions are not repeated.
  const std::string turns = extra == "parallel.pipeline=2" ? "off" : "auto";
  const Recipe given =
      parse_recipe(text, "tiny.yaml", {extra, "precision=bf16", "parallel.overlap_micro_batches=" + turns});
  const MachineProfile profile = find_profile("h100");
  SearchLimits limits;
  limits.world = 8, limits.ranks_per_node = 4;
  std::vector<Layout> all;
  for_each_layout(given, limits, [&](const Layout& l) { all.push_back(l); });
  REQUIRE(all.size() > 100);
  std::map<std::string, int> shorter;  // passes with fewer ops, by schedule
  std::set<std::string> schedules;
  int compared = 0;
  for (size_t i = 0; i < all.size(); i += std::max<size_t>(1, all.size() / 60)) {
    Recipe r = given;
    set_layout(r, all[i]);
    r = resolve(r, limits.world, limits.ranks_per_node);
    INFO(layout_text(all[i], given) << " " << extra);
    const PipelineLayout layout = pipeline_layout(r, profile);
    for (int rank : ranks_to_plan(r, profile)) {
      INFO("rank " << rank);
      const RankPlan whole = plan_rank(r, profile, layout, rank, threads_per_rank(r), true);
      check_replayed(plan_rank(r, profile, layout, rank, threads_per_rank(r), true, RankPass::repeats),
                     whole);
      const RankPlan composed = compose_rank(r, profile, layout, rank, threads_per_rank(r));
      CHECK(composed.total_bytes == whole.total_bytes);
      CHECK(composed.host_bytes == whole.host_bytes);
      CHECK(composed.step_seconds == Approx(whole.step_seconds).epsilon(1e-9));
      REQUIRE(composed.actions.size() == whole.actions.size());
      for (size_t a = 0; a < whole.actions.size(); ++a) {
        REQUIRE(composed.actions[a].seconds == Approx(whole.actions[a].seconds).epsilon(1e-9));
        REQUIRE(composed.actions[a].gathering == Approx(whole.actions[a].gathering).margin(1e-12));
        // One that is repeated does not count what others' tensors took to come.
        if (whole.actions[a].gathering > 0)
          REQUIRE(composed.actions[a].end == Approx(whole.actions[a].end).epsilon(1e-9));
      }
      ++compared;
    }
    if (r.parallel.pipeline == 1 || r.parallel.zero_stage > 1) continue;
    const size_t some = entries(r, profile, layout, 0, true), every = entries(r, profile, layout, 0, false);
    if (layout.schedule.has_pairs()) {
      CHECK(some == every);
      continue;
    }
    schedules.insert(r.parallel.schedule);
    if (some > 0 && some < every) ++shorter[r.parallel.schedule];
  }
  CHECK(compared > 60);
  // Steps of two passes, activations that leave the device and rounded gradients have nothing repeated.
  if (extra == "parallel.pipeline=2")
    for (const std::string& s : schedules) {
      INFO(s);
      CHECK(shorter[s] > 0);
    }
}
