#include "runtime/plan/schedule_plan.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/json/json.h"
#include "parallel/pipeline/draw.h"
#include "parallel/pipeline/fill_weights.h"
#include "parallel/pipeline/schedule_csv.h"
#include "parallel/pipeline/simulate_checked.h"
#include "parallel/pipeline/split_layers.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/pass_costs.h"
#include "runtime/program/recipe_program.h"
#include "runtime/recipe/derived.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/rules/rules.h"

namespace ltrain {
namespace {

using namespace pipeline;
using nlohmann::ordered_json;

constexpr size_t kMaxScheduleBytes = 64 << 20;

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxScheduleBytes + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad())
    fail(ExitCode::usage, "parallel.schedule_file: {}: {}", path, std::strerror(errno ? errno : EIO));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxScheduleBytes)
    fail(ExitCode::usage, "parallel.schedule_file: {}: is larger than {} bytes", path, kMaxScheduleBytes);
  return text;
}

pipeline::Schedule schedule_of_file(const Recipe& r, int ranks, int micros, std::vector<std::string>* notes) {
  const std::string& path = *r.parallel.schedule_file;
  pipeline::Schedule s = read_schedule_csv(read_file(path), path, notes);
  if (!s.has_pairs() && r.parallel.overlap_micro_batches == OverlapChoice::on)
    fail(ExitCode::usage,
         "parallel.schedule_file: {}: has no OVERLAP_F_B, and parallel.overlap_micro_batches is on; nearest "
         "valid "
         "value: auto",
         path);
  if (s.has_pairs() && !recipe::overlaps_micro_batches(r)) {
    notes->push_back(
        fmt::format("{}: OVERLAP_F_B pairs run one after the other: "
                    "parallel.overlap_micro_batches",
                    path));
    s = without_pairs(std::move(s));
  }
  const auto differs = [&](const char* what, int64_t have, const std::string& key, int64_t want) {
    if (have != want)
      fail(ExitCode::usage, "parallel.schedule_file: {}: is for {} {}, and the recipe has {} ({})", path,
           have, what, want, key);
  };
  differs("ranks", s.ranks, "parallel.pipeline", ranks);
  differs("micro-batches", s.micros,
          "train.global_batch_size / (train.micro_batch_size * data-parallel ranks)", micros);
  if (r.origins && r.origins->has("parallel.virtual_pipeline"))
    differs("chunks a rank", s.chunks, "parallel.virtual_pipeline", r.parallel.virtual_pipeline);
  return s;
}

std::vector<int> layers_by_hand(const Recipe& r, int stages) {
  const auto& given = r.parallel.pipeline_layers;
  if (given.empty()) return {};
  if (const std::string wrong = split_rule(given, r.model.num_hidden_layers, stages); !wrong.empty())
    fail(ExitCode::usage, "parallel.pipeline_layers: {}", wrong);
  return {given.begin(), given.end()};
}

// Priced layers of a model with equal layers: the first, the last, and some between.
constexpr size_t kPricedLayers = 6;

/// Extends the costs to `layers` layers by repeating the fourth one.
void repeat_layer(std::vector<double>& costs, size_t layers) {
  costs.insert(costs.begin() + 3, layers - costs.size(), costs[3]);
}

/// Layer costs from the first micro-batches of a step, on one pipeline rank.
LayerCosts costs_of_each(const Recipe& whole, const MachineProfile& profile,
                         const RecomputeOptions& recompute) {
  PipelineLayout layout;
  layout.recompute = recompute;
  return costs_of_entries(pass_entries(whole, profile, layout, priced_end(whole)), whole);
}

/// LayerCosts::hidden, from a step in which the backward of the first micro-batch overlaps the forward of the
/// second.
double hidden_by_turns(Recipe whole, const MachineProfile& profile, const RecomputeOptions& recompute) {
  if (layers_alike(whole))
    whole.model.num_hidden_layers = std::min<int64_t>(whole.model.num_hidden_layers, kPricedLayers);
  PipelineLayout layout;
  layout.recompute = recompute;
  const auto actions = [&](OverlapChoice overlap) {
    whole.parallel.overlap_micro_batches = overlap;
    return step_actions(whole, profile, layout);
  };
  const std::vector<ActionTime> apart = actions(OverlapChoice::off), turns = actions(OverlapChoice::on);
  const double hidden = apart[1].seconds + apart[2].seconds - turns[1].seconds;
  return std::max(0.0, hidden / static_cast<double>(whole.model.num_hidden_layers));
}

/// Like costs_of_each, with fewer layers if all are equal and cost the same.
LayerCosts costs_of_one(const Recipe& whole, const MachineProfile& profile,
                        const RecomputeOptions& recompute) {
  const auto layers = static_cast<size_t>(whole.model.num_hidden_layers);
  if (layers <= kPricedLayers || !layers_alike(whole)) return costs_of_each(whole, profile, recompute);
  Recipe few = whole;
  few.model.num_hidden_layers = kPricedLayers;
  LayerCosts c = costs_of_each(few, profile, recompute);
  for (std::vector<double>* costs : {&c.forward, &c.input, &c.weight}) {
    if (std::abs((*costs)[2] - (*costs)[3]) > 1e-9 * (*costs)[3])
      return costs_of_each(whole, profile, recompute);
    repeat_layer(*costs, layers);
  }
  return c;
}

}  // namespace

StepEnd priced_end(const Recipe& r) {
  return computes_in(r, Precision::fp8) ? StepEnd::before_update : StepEnd::first_micro_batch;
}

bool layers_alike(const Recipe& r) {
  const ModelConfig& m = r.model;
  const bool mixed = m.moe.num_experts > 0 && (m.moe.layer_step > 1 || !m.moe.dense_layers.empty());
  return !mixed && m.layer_types.empty() && m.no_rope_layers.empty() && !computes_in(r, Precision::fp8);
}

std::vector<double> transfer_seconds(const Recipe& r, const MachineProfile& profile) {
  const Mesh mesh = mesh_of(r, 0);
  const int parts = mesh.sequence_parts() * mesh.size(Axis::column) * mesh.size(Axis::context) *
                    (r.parallel.sequence_parallel ? mesh.size(Axis::tensor) : 1);
  OpCost move;
  move.name = move.collective = "send";
  move.cls = OpClass::collective;
  move.dtype = precision_policy(std::string(to_string(r.precision))).compute;
  move.group_size = 2;
  move.bytes = move.wire_bytes = static_cast<double>(r.train.micro_batch_size * r.data.seq_length *
                                                     r.model.hidden_size * dtype_size(move.dtype) / parts);
  const int n = mesh.size(Axis::pipeline), on_host = static_cast<int>(r.launch.ranks_on_host);
  const ProfileCost cost(profile, threads_per_rank(r), false, on_host, mesh.world());
  struct Pair {
    std::vector<int> ranks;  // must outlive the pricing
    double seconds = 0;
  };
  std::map<std::pair<bool, uint64_t>, Pair> alike;  // one entry for all pairs with the same location
  std::vector<double> seconds;
  for (int from = 0; from < n; ++from)
    for (int to = 0; to < n; ++to) {
      const int a = mesh.at(Axis::pipeline, from), b = mesh.at(Axis::pipeline, to);
      const bool far = a / on_host != b / on_host;
      const auto [it, fresh] = alike.try_emplace({far, cost.levels_met(a, b)});
      if (fresh) {
        it->second.ranks = {a, b};
        move.ranks = &it->second.ranks;
        move.network_bytes = far ? move.wire_bytes : 0;
        it->second.seconds = cost.seconds(move);
      }
      seconds.push_back(it->second.seconds);
    }
  return seconds;
}

LayerCosts layer_costs(const Recipe& resolved, const MachineProfile& profile,
                       std::optional<RecomputeOptions> recompute) {
  Recipe whole = recipe::micro_batches_apart(resolved);  // all layers on one pipeline rank
  // Each rank keeps the threads that it has with all ranks present.
  whole.launch.threads_per_rank = threads_per_rank(resolved);
  whole.parallel.pipeline = whole.parallel.virtual_pipeline = 1;
  if (whole.parallel.expert == 1) whole.parallel.data = 1;  // otherwise its ranks hold experts
  whole.parallel.zero_stage = 0;
  whole.parallel.shard_ranks = 0;
  // Two micro-batches, of which the first is priced, because gradients are reduced after the second.
  whole.diloco.shares.clear();
  whole.train.global_batch_size = 2 * whole.train.micro_batch_size * whole.parallel.data;
  if (!recompute)
    recompute = resolved.recompute.granularity == RecomputeGranularity::automatic
                    ? RecomputeOptions()
                    : recompute_options(resolved);
  const int64_t again = recompute->layers;
  recompute->layers = -1;
  LayerCosts c = costs_of_one(whole, profile, *recompute);
  if (recipe::overlaps_micro_batches(resolved)) c.hidden = hidden_by_turns(whole, profile, *recompute);
  if (again >= 0) {
    const LayerCosts all = c;
    c = costs_of_one(whole, profile, {});
    c.recomputed_layers = again;
    for (size_t i = 0; i < all.input.size(); ++i) c.recompute.push_back(all.input[i] - c.input[i]);
  }
  // The activations of a layer are those that a second layer adds.
  whole.model.num_hidden_layers = 1;
  const int64_t one = activation_bytes(whole, profile);
  whole.model.num_hidden_layers = 2;
  const int64_t layer = activation_bytes(whole, profile) - one;
  c.activation.assign(c.forward.size(), static_cast<double>(layer));
  c.first_activation = static_cast<double>(std::max<int64_t>(0, one - layer));

  c.transfer = transfer_seconds(resolved, profile);
  return c;
}

SchedulePlan plan_schedule(const Recipe& r, const LayerCosts& costs, const std::vector<double>& limit) {
  const int64_t micros64 = micro_batches_per_step(r);
  if (micros64 > INT32_MAX) fail(ExitCode::usage, "{} micro-batches a step are too many to plan", micros64);
  const int ranks = static_cast<int>(r.parallel.pipeline), micros = static_cast<int>(micros64);
  SchedulePlan plan;
  // One rank has only one order, so parallel.schedule has no effect.
  const std::string name = ranks == 1 ? "1f1b" : r.parallel.schedule;
  if (name == "auto" && !r.parallel.schedule_file) {
    ChoiceOptions options;
    options.limit = limit;
    options.counts = {r.parallel.pipeline_layers.begin(), r.parallel.pipeline_layers.end()};
    options.pairs = recipe::overlaps_micro_batches(r);
    Choice choice = choose_schedule(costs, ranks, micros, options);
    plan.schedule = std::move(choice.schedule);
    plan.staged = std::move(choice.staged);
    plan.timing = std::move(choice.timing);
    plan.tried = std::move(choice.tried);
    return plan;
  }
  plan.schedule = r.parallel.schedule_file
                      ? schedule_of_file(r, ranks, micros, &plan.notes)
                      : make_schedule(name, ranks, static_cast<int>(r.parallel.virtual_pipeline), micros,
                                      recipe::overlaps_micro_batches(r));
  const int stages = plan.schedule.stages();
  plan.staged = stage_costs(costs, plan.schedule.rank_of_stage, layers_by_hand(r, stages));
  if (!r.parallel.schedule_file) plan.schedule = fill_with_weights(plan.schedule, plan.staged.costs);
  plan.timing = r.parallel.schedule_file ? simulate(plan.schedule, plan.staged.costs)
                                         : simulate_checked(plan.schedule, plan.staged.costs);
  return plan;
}

PipelinePlan plan_pipeline(const Recipe& r, const MachineProfile& profile,
                           const pipeline::LayerCosts* costs) {
  PipelinePlan out;
  if (r.parallel.pipeline > 1) {
    SchedulePlan plan =
        plan_schedule(r, costs ? *costs : layer_costs(r, profile), activation_limit(r, profile));
    out.layout.schedule = std::move(plan.schedule);
    out.layout.stage_layers = std::move(plan.staged.layers);
    out.costs = std::move(plan.staged.costs);
    out.timing = std::move(plan.timing);
  }
  if (r.recompute.granularity == RecomputeGranularity::automatic) {
    out.layout.recompute = choose_recompute(r, profile, out.layout);
    out = priced_pipeline(r, profile, out.layout);  // includes the recompute
  }
  if (chooses_update(r)) out.layout.update = price_updates(r, profile, out.layout);
  return out;
}

PipelineLayout pipeline_layout(const Recipe& r, const MachineProfile& profile) {
  return plan_pipeline(r, profile).layout;
}

std::string schedule_text(const SchedulePlan& p, int width) {
  std::string out = draw_text(p.schedule, p.timing, width, p.costs) + "\n" + rank_table(p.schedule, p.timing);
  out += fmt::format("\n{:>6}{:>6}{:>8}{:>12}{:>12}{:>12}\n", "stage", "rank", "layers", "F", "I", "W");
  for (int s = 0; s < p.schedule.stages(); ++s)
    out += fmt::format("{:>6}{:>6}{:>8}{:>12.4g}{:>12.4g}{:>12.4g}\n", s, p.schedule.rank_of_stage[s],
                       p.staged.layers[s], p.staged.costs.forward[s], p.staged.costs.input[s],
                       p.staged.costs.weight[s]);
  if (!p.tried.empty()) out += "\nauto tried (* taken)\n" + choice_table(p.tried);
  return out;
}

std::string schedule_json(const SchedulePlan& p) {
  const pipeline::Schedule& s = p.schedule;
  ordered_json j;
  j["schema"] = "ltrain.schedule.v1";
  j["schedule"] = s.name;
  j["ranks"] = s.ranks;
  j["chunks"] = s.chunks;
  j["micro_batches"] = s.micros;
  j["costs"] = p.costs;
  j["makespan_seconds"] = p.timing.makespan;
  j["step_seconds"] = p.timing.step;
  j["bubble_share"] = p.timing.bubble_share;
  j["stages"] = ordered_json::array();
  for (int i = 0; i < s.stages(); ++i)
    j["stages"].push_back({{"stage", i},
                           {"rank", s.rank_of_stage[i]},
                           {"layers", p.staged.layers[i]},
                           {"forward_seconds", p.staged.costs.forward[i]},
                           {"input_seconds", p.staged.costs.input[i]},
                           {"weight_seconds", p.staged.costs.weight[i]}});
  j["by_rank"] = ordered_json::array();
  for (int r = 0; r < s.ranks; ++r) {
    ordered_json actions = ordered_json::array();
    for (size_t i = 0; i < s.order[r].size(); ++i)
      actions.push_back({{"action", to_string(s.order[r][i])},
                         {"start", p.timing.start[r][i]},
                         {"end", p.timing.end[r][i]},
                         {"by_turns_with_next", s.order[r][i].with_next}});
    j["by_rank"].push_back({{"rank", r},
                            {"busy_seconds", p.timing.busy[r]},
                            {"bubble_seconds", p.timing.bubble[r]},
                            {"inner_bubble_seconds", p.timing.inner_bubble[r]},
                            {"peak_activations", p.timing.peak_activations[r]},
                            {"actions", std::move(actions)}});
  }
  j["tried"] = ordered_json::array();
  for (const pipeline::Candidate& c : p.tried)
    j["tried"].push_back({{"schedule", c.name},
                          {"chunks", c.chunks},
                          {"chosen", c.chosen},
                          {"weights_moved", c.weights_moved},
                          {"refused", c.refused},
                          {"step_seconds", c.step},
                          {"bubble_share", c.bubble_share},
                          {"peak_kept", c.peak_kept}});
  j["notes"] = p.notes;
  return j.dump(1);
}

}  // namespace ltrain
