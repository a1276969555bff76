// Output of a plan for people and for programs.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "base/bytes_text.h"
#include "base/json/json.h"
#include "kernels/tensor/device.h"
#include "parallel/mesh/mesh.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/plan_print.h"
#include "runtime/plan/rank_map.h"
#include "runtime/program/recipe_program.h"
#include "runtime/routing/step_routing.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain {
namespace {

using nlohmann::ordered_json;

/// A line of a memory table.
std::string row(const std::string& what, int64_t bytes, const std::string& note = "") {
  return fmt::format("  {:<28}{:>16}{}{}\n", what, bytes_text(bytes), note.empty() ? "" : "  ", note);
}

/// A number and its unit, in steps of 1000: {989.4, "TFLOP"}.
std::pair<double, std::string> scaled_flops(double flops) {
  double v = flops / 1e9;
  const char* units[] = {"GFLOP", "TFLOP", "PFLOP", "EFLOP"};
  size_t unit = 0;
  for (; v >= 9999.95 && unit + 1 < std::size(units); ++unit) v /= 1e3;
  return {v, units[unit]};
}

/// "61.2 to 71.9 GiB", for the ranks other than `most`; empty if all take as much.
std::string spread_text(const Plan& p, const RankPlan& most) {
  int64_t low = most.total_bytes, high = 0;
  for (const RankPlan& r : p.ranks) {
    if (&r == &most) continue;
    low = std::min(low, r.total_bytes);
    high = std::max(high, r.total_bytes);
  }
  std::string from = bytes_text(low);
  const std::string to = bytes_text(high);
  if (from == bytes_text(most.total_bytes)) return "";
  if (from == to) return from;
  const std::string unit = from.substr(from.find(' '));
  if (to.ends_with(unit)) from.resize(from.size() - unit.size());
  return fmt::format("{} to {}", from, to);
}

/// "14 published, 3 assumed (overlap, launch_seconds, ...)": sources of the card figures used for times.
std::string figures_text(const std::set<FigureUse>& figures) {
  constexpr size_t kNames = 3;
  std::array<size_t, kFigureSourceCount> counts{};
  std::vector<std::string> assumed;
  for (const FigureUse& f : figures) {
    ++counts[static_cast<size_t>(f.source)];
    if (f.source == FigureSource::assumed) assumed.push_back(f.name);
  }
  std::string out;
  for (int i = 0; i < kFigureSourceCount; ++i)
    if (const size_t n = counts[static_cast<size_t>(i)])
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", n,
                         figure_source_name(static_cast<FigureSource>(i)));
  if (assumed.empty()) return out;
  const bool more = assumed.size() > kNames;
  if (more) assumed.resize(kNames);
  return fmt::format("{} ({}{})", out, fmt::join(assumed, ", "), more ? ", ..." : "");
}

ordered_json figures_json(const std::set<FigureUse>& figures) {
  ordered_json j = ordered_json::array();
  for (const FigureUse& f : figures)
    j.push_back({{"figure", f.name}, {"source", figure_source_name(f.source)}, {"reference", f.reference}});
  return j;
}

/// Number of times that weights are quantized (TrainProgram::make_fp8).
std::string fp8_text(const Plan& p, const Recipe& recipe) {
  if (!computes_in(recipe, Precision::fp8)) return "";
  const std::string output =
      recipe.fp8.output_layer ? ", those of the output layer once a micro-batch, for all its chunks" : "";
  if (const ShardingPolicy s = recipe.parallel.sharding(); s.shards_weights() && !s.keeps_gathered())
    return fmt::format("weights are rounded at each use{}: ZeRO-3 releases them after it", output);
  if (p.accumulation == 1)
    return fmt::format("weights are rounded at each use{}: a step has one micro-batch", output);
  return fmt::format(
      "weights are rounded once a step, and kept with their transposes for its {} micro-batches",
      p.accumulation);
}

ordered_json rank_json(const RankPlan& r) {
  ordered_json j;
  j["rank"] = r.rank;
  ordered_json arena;
  for (int i = 0; i < kMemoryKindCount; ++i)
    arena[std::string(memory_kind_name(static_cast<MemoryKind>(i)))] = r.arena.by_kind[i];
  arena["gaps"] = r.arena.arena_bytes - r.arena.live_bytes;
  arena["total"] = r.arena.arena_bytes;
  if (r.even_arena_bytes > 0) arena["total_if_routing_is_even"] = r.even_arena_bytes;
  if (r.row_budget > 0) arena["row_budget"] = r.row_budget;
  j["memory_bytes"]["arena"] = arena;
  for (const ExternalMemory& o : r.outside)
    j["memory_bytes"]["outside"].push_back(
        {{"name", o.name}, {"bytes", o.bytes}, {"source", o.source}, {"of", device_name(o.where)}});
  j["memory_bytes"]["staging"] = r.staging_bytes;
  if (r.offloaded.all() > 0) j["memory_bytes"]["offloaded"] = r.offloaded.all();
  for (const auto& [what, bytes] : offloaded_text(r.offloaded))
    j["memory_bytes"]["offloaded_parts"][what] = bytes;
  j["memory_bytes"]["total"] = r.total_bytes;
  j["memory_bytes"]["total_of_host"] = r.host_bytes;
  j["communication"] = ordered_json::array();
  for (const CollectivePlan& c : r.collectives)
    j["communication"].push_back({{"axis", c.axis},
                                  {"group", c.group},
                                  {"collective", c.op},
                                  {"calls", c.calls},
                                  {"bytes", c.bytes},
                                  {"wire_bytes", c.wire_bytes},
                                  {"network_bytes", c.network_bytes},
                                  {"seconds", c.seconds}});
  j["wire_bytes_per_step"] = r.train_wire_bytes;
  if (const RankPlan::OtherStep most = r.largest_other(); most.seconds > 0) {
    j["other_wire_bytes_per_step"] = most.wire_bytes;
    j["other_step_seconds"] = most.seconds;
  }
  if (r.others.size() > 1)
    for (const RankPlan::OtherStep& s : r.others)
      j["other_kinds"].push_back({{"wire_bytes_per_step", s.wire_bytes}, {"step_seconds", s.seconds}});
  if (r.worst_expert_bytes > 0) j["expert_wire_bytes_at_worst"] = r.worst_expert_bytes;
  j["wire_bytes_per_eval"] = r.eval_wire_bytes;
  j["model_flops_per_step"] = r.model_flops;
  j["step_seconds"] = r.step_seconds;
  j["exposed_comm_seconds"] = r.exposed_comm_seconds();
  j["exposed_comm_seconds_by_axis"] = ordered_json::object();
  for (const auto& [axis, seconds] : r.exposed) j["exposed_comm_seconds_by_axis"][axis] = seconds;
  if (r.exposed_offload_seconds > 0) j["exposed_offload_seconds"] = r.exposed_offload_seconds;
  if (r.states_out_bytes + r.states_in_bytes > 0)
    j["offload_optimizer"] = {{"bytes_out", std::llround(r.states_out_bytes)},
                              {"bytes_in", std::llround(r.states_in_bytes)},
                              {"host_seconds", r.host_update_seconds}};
  if (!r.frozen_model.empty()) j[r.frozen_model] = {{"bytes", r.frozen_bytes}, {"seconds", r.frozen_seconds}};
  j["eval_seconds"] = r.eval_seconds;
  for (const OpPlan& o : r.ops)
    j["ops"].push_back({{"name", o.name},
                        {"calls", o.calls},
                        {"flops", o.flops},
                        {"bytes", o.bytes},
                        {"seconds", o.seconds}});
  return j;
}

/// Rates that `ltrain bench --links` measured, and the slow links that the plan leaves out.
std::string links_text(const MeasuredLinks& links) {
  if (links.file.empty()) return "";
  std::string levels;
  int64_t slow = 0;
  for (const MeasuredLevel& l : links.levels) {
    levels += fmt::format("{}{} {:.3f} GB/s (median of {})", levels.empty() ? "" : ", ", l.name,
                          l.bytes_per_second * 1e-9, l.links);
    slow += l.slow;
  }
  std::string out = fmt::format("  (links measured in {}: {})\n", links.file, levels);
  if (slow > 0)
    out += fmt::format(
        "  (slow links: {}, the slowest of them {}; a ring over it goes at its pace, and the plan has the "
        "medians)\n",
        slow, links.slowest);
  return out;
}

}  // namespace

ordered_json links_json(const MeasuredLinks& links) {
  ordered_json j{{"file", links.file}, {"levels", ordered_json::array()}};
  for (const MeasuredLevel& l : links.levels)
    j["levels"].push_back({{"name", l.name},
                           {"bytes_per_second", l.bytes_per_second},
                           {"links", l.links},
                           {"slow", l.slow},
                           {"lowest_bytes_per_second", l.lowest}});
  if (!links.slowest.empty()) j["slowest"] = links.slowest;
  return j;
}

std::string sources_text(const Plan& p) {
  std::string out = links_text(p.links);
  if (p.network_bytes() > 0 && !p.network_given)
    out += fmt::format("  (the network between nodes was not measured; {})\n", p.network_source);
  if (p.profile_built_in)
    out += fmt::format("  ({}figures of the profile: {}; --json has their sources)\n",
                       p.links.file.empty() ? "nothing was measured here; " : "",
                       figures_text(p.ranks.front().figures));
  else if (!p.profile_measured)
    out += "  (a guess: run `ltrain bench` to measure this machine)\n";
  return out;
}

std::string memory_text(const RankPlan& r) {
  std::string out = fmt::format("memory of rank {}\n", r.rank);
  for (int i = 0; i < kMemoryKindCount; ++i)
    if (r.arena.by_kind[i])
      out += row(std::string(memory_kind_name(static_cast<MemoryKind>(i))), r.arena.by_kind[i]);
  if (const int64_t gaps = r.arena.arena_bytes - r.arena.live_bytes; gaps > 0)
    out += row("gaps between tensors", gaps);
  if (!r.frozen_model.empty())
    out += row(r.frozen_model + "'s weights", r.frozen_bytes, "(exactly; among the parameters)");
  out += row("arena", r.arena.arena_bytes, "(allocated once, exactly)");
  if (r.even_arena_bytes > 0)
    out +=
        row("arena, balanced", r.even_arena_bytes,
            r.row_budget > 0
                ? fmt::format("(if tokens went to experts evenly; the arena has room for {:g} even shares, "
                              "what comes beyond goes in further slices)",
                              r.row_budget)
                : "(if tokens went to experts evenly; the arena has room for the worst)");
  for (const ExternalMemory& o : r.outside)
    out += row((r.staging_bytes > 0 && o.where == DeviceKind::cpu ? "host: " : "outside: ") + o.name, o.bytes,
               fmt::format("({})", o.source));
  if (r.staging_bytes == 0)
    for (const auto& [what, bytes] : offloaded_text(r.offloaded))
      out += row("on disk: " + what, bytes, "(exactly; not in the sums)");
  if (r.staging_bytes > 0) out += row("host: staging", r.staging_bytes, "(pinned host memory, exactly)");
  out += row("total", r.total_bytes);
  if (r.staging_bytes > 0) out += row("total of the host", r.host_bytes);
  return out;
}

namespace {

std::string matmuls_text(const SparsePrice& s) {
  if (!s.skips_zeros) return "bytes stay, and matmuls are dense ones";
  if (s.speedup > 0)
    return fmt::format(
        "bytes stay, and matmuls that skip these zeros are priced at {:.2f} times the dense speed",
        s.speedup);
  return "bytes stay; matmuls skip zeros and are priced as dense ones (the profile has no "
         "sparse_matmul_speedup, which `ltrain bench` measures)";
}

std::string sparse_line(const Plan& p, const SparsitySettings& s) {
  const SparsePattern pattern = sparse_pattern(s, 0);
  const int zeros = pattern.group - pattern.kept;
  const std::string share =
      2 * zeros == pattern.group ? "half" : fmt::format("{} of {}", zeros, pattern.group);
  const std::string moving =
      !s.moves()
          ? fmt::format("{} of them zero from update {} on", share, p.sparse_from)
          : fmt::format("{} of them masked from update {}{}, with new masks every {} updates", share,
                        p.sparse_from, s.dense_tail > 0 ? fmt::format(" to {}", s.tail_begin() - 1) : " on",
                        s.mask_interval);
  return fmt::format("{} sparse: {} parameters, {}; {}\n\n", pattern_text(s),
                     format_count(static_cast<double>(p.sparse_parameters)), moving, matmuls_text(p.sparse));
}

std::string head_text(const Plan& p, const Recipe& recipe) {
  const Mesh mesh = mesh_of(recipe, 0);
  std::string axes = mesh.sites > 1 ? fmt::format("sites {}", mesh.sites) : "";
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); a == Axis::data || mesh.size(a) > 1)
      axes += fmt::format("{}{} {}", axes.empty() ? "" : ", ", axis_name(a), mesh.size(a));
  std::string out =
      fmt::format("plan of {}: {} {} parameters, {}, on {} rank{} ({}) of {}\n\n", p.recipe_name,
                  format_count(static_cast<double>(p.parameters)), recipe.model.family->name,
                  precision_text(recipe), p.world, p.world == 1 ? "" : "s", axes,
                  p.device == DeviceKind::cuda
                      ? "one GPU"
                      : fmt::format("{} thread{}", p.threads_per_rank, p.threads_per_rank == 1 ? "" : "s"));
  if (const int64_t layers = recipe.parallel.zero_layers; layers > 0)
    out += fmt::format("ZeRO: stage 2 for the first {} layer{} of {}, stage 3 for all else\n\n", layers,
                       layers == 1 ? "" : "s",
                       recipe.parallel.pipeline > 1 ? "each pipeline stage" : "the model");
  if (p.sparse_parameters > 0) out += sparse_line(p, optimizer_settings(recipe).sparsity);
  if (const QuantizationSettings& q = recipe.quantization; p.quantized_parameters > 0)
    out += fmt::format(
        "quantized: {} parameters are {} in each step, {}\n\n",
        format_count(static_cast<double>(p.quantized_parameters)), q.weights,
        q.group_size == 0 ? "with one scale a row" : fmt::format("with one scale for {}", q.group_size));
  if (p.node.cards > 0) out += p.node.text() + "; launch.ranks_per_node says otherwise\n\n";
  return out;
}

/// Memory of the rank that needs most, or with `all_ranks` of every planned rank, and what there is.
std::string memory_part(const Plan& p, bool all_ranks) {
  const RankPlan& most =
      *std::max_element(p.ranks.begin(), p.ranks.end(),
                        [](const RankPlan& x, const RankPlan& y) { return x.total_bytes < y.total_bytes; });
  std::string out;
  if (all_ranks) {
    for (const RankPlan& r : p.ranks) out += std::string(&r == &p.ranks.front() ? "" : "\n") + memory_text(r);
  } else {
    out += memory_text(most);
    if (const std::string spread = spread_text(p, most); !spread.empty())
      out += fmt::format("  other ranks: {}, by stage with --ranks\n", spread);
  }
  if (p.device_bytes > 0) out += row("a card has", p.device_bytes);
  if (p.for_this_machine) out += row("this host has", p.host_bytes);
  return out;
}

std::string communication_part(const Plan& p, const RankPlan& r) {
  std::string out = "\ncommunication of a step, rank 0\n";
  if (r.collectives.empty() || r.train_wire_bytes == 0)
    out += r.largest_other().wire_bytes > 0 ? "  none but in the other kind of step (below)\n"
                                            : "  none: no axis is larger than 1\n";
  if (r.train_wire_bytes == 0) return out;
  const int64_t network = p.network_bytes();
  size_t width = 8;
  for (const CollectivePlan& c : r.collectives) width = std::max(width, c.axis.size());
  out += fmt::format("  {:<{}}  {:<5}  {:<16}{:>6}{:>17}{:>18}", "axis", width, "group", "collective",
                     "calls", "payload", "sent");
  if (network > 0) out += fmt::format("{:>18}", "to other nodes");
  out += fmt::format("{:>12}\n", "time");
  for (const CollectivePlan& c : r.collectives) {
    out += fmt::format("  {:<{}}  {:<5}  {:<16}{:>6}{:>17}{:>18}", c.axis, width, c.group, c.op, c.calls,
                       bytes_text(c.bytes), bytes_text(c.wire_bytes));
    if (network > 0) out += fmt::format("{:>18}", bytes_text(c.network_bytes));
    out += fmt::format(" {:>8.2f} ms\n", c.seconds * 1e3);
  }
  if (r.worst_expert_bytes > 0)
    out += fmt::format(
        "  rows of experts: as above when {}, at most {} when tokens go to them as unevenly as can be\n",
        p.expert_skew > 1 ? fmt::format("a rank has {:g} even shares", p.expert_skew)
                          : "tokens go to them evenly",
        bytes_text(r.worst_expert_bytes));
  if (network > 0)
    out += fmt::format("  between nodes: {:.1f} Gbit/s for the {} rank{} of a node, {}{}\n",
                       p.network_bytes_per_second * 8e-9, p.ranks_on_host, p.ranks_on_host == 1 ? "" : "s",
                       p.network_source, p.network_given ? "" : " (`network` in the profile sets it)");
  return out;
}

/// Steps of sites that differ. The slowest is waited for when they synchronize.
std::string sites_text(const Plan& p) {
  constexpr size_t kShown = 8;
  std::string out;
  for (size_t s = 0; s < std::min(kShown, p.sites.size()); ++s)
    out +=
        fmt::format("  {:<28}{:>12.1f} ms for {} micro-batch{} a rank\n", fmt::format("step of site {}", s),
                    p.sites[s].seconds * 1e3, p.sites[s].micros, p.sites[s].micros == 1 ? "" : "es");
  if (p.sites.size() > kShown) out += fmt::format("  ... {} more sites\n", p.sites.size() - kShown);
  if (!p.better.shares.empty())
    out += fmt::format("  {:<28}{:>12.1f} ms a step, as sites wait for the slowest\n",
                       fmt::format("diloco.shares: [{}]", fmt::join(p.better.shares, ", ")),
                       p.better.step_seconds * 1e3);
  return out;
}

/// Time of a step and what it is made of.
std::string step_part(const Plan& p, const Recipe& recipe, const RankPlan& r) {
  const double seconds = p.step_seconds();
  std::string out =
      fmt::format("\ntime, by {} profile {}\n", p.profile_measured ? "the measured" : "the", p.profile);
  const auto [work, unit] = scaled_flops(r.model_flops);
  out += fmt::format("  {:<28}{:>12.1f} model {} a rank, {} tokens, {} micro-batch{} a rank\n", "step", work,
                     unit, p.tokens_per_step, p.accumulation, p.accumulation == 1 ? "" : "es");
  std::string exposed;
  for (const auto& [axis, s] : r.exposed)
    exposed += fmt::format("{}{} {:.1f}", exposed.empty() ? ": " : ", ", axis, s * 1e3);
  out += fmt::format("  {:<28}{:>12.1f} ms ({:.1f} ms of it exposed communication{})\n", "step time",
                     seconds * 1e3, r.exposed_comm_seconds() * 1e3, exposed);
  if (p.sparse.other_step_seconds > 0)
    out += fmt::format("  {:<28}{:>12.1f} ms in {} of {} steps\n",
                       p.sparse.usual ? "step without zeros" : "step with zeros",
                       p.sparse.other_step_seconds * 1e3, p.other_sparse_steps(), p.train_steps);
  out += sites_text(p);
  if (!r.frozen_model.empty())
    out += fmt::format("  {:<28}{:>12.1f} ms of the step time\n", r.frozen_model + "'s forward",
                       r.frozen_seconds * 1e3);
  if (!p.schedule.empty())
    out += fmt::format("  {:<28}{:>12.1f} % of the pipeline's time; {}{}{}\n", "bubble", 100 * p.bubble_share,
                       p.schedule, recipe.parallel.chooses_schedule() ? ", which auto chose" : "",
                       p.pipeline_chunks > 1 ? fmt::format(", {} chunks a rank", p.pipeline_chunks) : "");
  if (p.even_step_seconds > 0)
    out += fmt::format(
        "  {:<28}{:>12.1f} ms, {} tokens/s; above and below an expert rank has {:g} even shares{}\n",
        "at even routing", p.even_step_seconds * 1e3,
        format_count(static_cast<double>(p.tokens_per_step) / p.even_step_seconds), p.expert_skew,
        r.row_budget > 0 && p.expert_skew > r.row_budget
            ? fmt::format(", in {:.0f} slices of at most {:g}", std::ceil(p.expert_skew / r.row_budget),
                          r.row_budget)
            : "");
  if (r.exposed_offload_seconds > 0)
    out += fmt::format("  {:<28}{:>12.1f} ms of the step time\n", "waiting for offload",
                       r.exposed_offload_seconds * 1e3);
  if (r.states_out_bytes + r.states_in_bytes > 0)
    out += fmt::format("  {:<28}{:>12} leave the device, {} come back\n", "transfers of the update",
                       bytes_text(std::llround(r.states_out_bytes)),
                       bytes_text(std::llround(r.states_in_bytes)));
  if (r.host_update_seconds > 0)
    out += fmt::format(
        "  {:<28}{:>12.1f} ms of the host's cores, at {:.0f} GB/s for the {} rank{} of a node, {}\n",
        "update on the host", r.host_update_seconds * 1e3, p.host_memory_bytes_per_second * 1e-9,
        p.ranks_on_host, p.ranks_on_host == 1 ? "" : "s", p.host_memory_source);
  if (*p.kinds.other) {
    const RankPlan::OtherStep most = r.largest_other();
    const char* up_to = r.others.size() > 1 ? "up to " : "";
    out += fmt::format("  {:<28}{:>12.1f} ms, {}{} sent: {} in {} of {} steps\n", "another kind of step",
                       most.seconds * 1e3, up_to, bytes_text(most.wire_bytes), p.kinds.other,
                       p.kinds.others(p.train_steps), p.train_steps);
  }
  return out;
}

/// Tokens per second, utilisation, the longest ops, and the time to the end of the run.
std::string rates_part(const Plan& p, const RankPlan& r) {
  std::string out =
      fmt::format("  {:<28}{:>12} tokens/s\n", "throughput", format_count(p.tokens_per_second()));
  const auto [peak, peak_unit] = scaled_flops(p.peak_flops);
  if (p.peak_known())
    out += fmt::format("  {:<28}{:>12.1f} % of {:.1f} {}/s, {}\n", "MFU", 100 * p.mfu(), peak, peak_unit,
                       p.profile_built_in ? "the card's peak" : "the fastest matmul of the profile");
  else
    out +=
        fmt::format("  {:<28}{:>12}; `ltrain bench` measures the peak of this machine\n", "MFU", "not known");
  for (size_t i = 0; i < r.ops.size() && i < 6; ++i)
    out += fmt::format("    {:<26}{:>12.1f} ms in {} call{}\n", r.ops[i].name, r.ops[i].seconds * 1e3,
                       r.ops[i].calls, r.ops[i].calls == 1 ? "" : "s");
  if (r.eval_seconds > 0) out += fmt::format("  {:<28}{:>12.1f} s\n", "one evaluation", r.eval_seconds);
  const double tokens = static_cast<double>(p.tokens_per_step) * static_cast<double>(p.train_steps);
  out += fmt::format("  {:<28}{:>12} for {} steps, {} tokens", "to the end",
                     format_duration(p.total_seconds()), p.train_steps, format_count(tokens));
  if (*p.kinds.other && p.total_seconds() > 0)
    out += fmt::format(", {} tokens/s with all kinds of steps", format_count(tokens / p.total_seconds()));
  out += "\n";
  return out;
}

/// Sources of figures, and decisions of the plan.
std::string notes_part(const Plan& p, const Recipe& recipe) {
  std::string out = sources_text(p);
  if (!p.attention.empty()) out += fmt::format("\nattention: {}\n", p.attention);
  if (!p.overlap.empty()) out += fmt::format("\noverlap: {}\n", p.overlap);
  if (!p.experts.empty()) out += fmt::format("\nexperts: {}\n", p.experts);
  if (const std::string rounding = fp8_text(p, recipe); !rounding.empty())
    out += fmt::format("\nfp8: {}\n", rounding);
  if (const std::string routing = routing_text(recipe); !routing.empty())
    out += fmt::format("\n{}\n", routing);
  if (p.update) out += fmt::format("\n{}\n", update_text(*p.update));
  if (!p.recompute.empty()) out += fmt::format("\nrecompute: auto computes again: {}\n", p.recompute);
  out += fmt::format("\nplacements: {} ops and collectives checked, none refused\n", p.placement_ops);
  return out;
}

}  // namespace

std::string plan_text(const Plan& p, const Recipe& recipe, const RankMap* map, bool all_ranks) {
  constexpr size_t kMapLines = 16;
  const RankPlan& first = p.ranks.front();
  std::string out = head_text(p, recipe);
  if (map && p.world > 1)
    out += rank_map_text(*map, all_ranks ? map->ranks.size() : kMapLines, "--ranks lists all") + "\n";
  out += memory_part(p, all_ranks) + communication_part(p, first) + step_part(p, recipe, first) +
         rates_part(p, first) + notes_part(p, recipe);
  return out + impossible_text(p) + fit_text(p) + "\n";
}

static void add_limits(ordered_json& j, const Plan& p) {
  j["memory_limits"] = ordered_json::array();
  for (const MemoryLimit& limit : memory_limits(p))
    j["memory_limits"].push_back({{"of", limit.of == DeviceKind::cpu ? "host" : "card"},
                                  {"ranks", limit.ranks},
                                  {"rank_bytes", limit.rank_bytes},
                                  {"needed_bytes", limit.needed_bytes()},
                                  {"available_bytes", limit.available_bytes},
                                  {"fits", limit.fits()}});
}

/// Adds the times of a step and of the run, and the pipeline that they are of.
static void add_times(ordered_json& j, const Plan& p) {
  j["step_seconds"] = p.step_seconds();
  if (!p.schedule.empty()) {
    j["schedule"] = p.schedule;
    j["pipeline_chunks"] = p.pipeline_chunks;
    j["bubble_share"] = p.bubble_share;
  }
  if (const double other = p.sparse.other_step_seconds; other > 0) {
    j["sparse_step_seconds"] = p.sparse.usual ? p.step_seconds() : other;
    j["dense_step_seconds"] = p.sparse.usual ? other : p.step_seconds();
  }
  j["tokens_per_second"] = p.tokens_per_second();
  j["expert_skew"] = p.expert_skew;
  if (p.even_step_seconds > 0) j["even_step_seconds"] = p.even_step_seconds;
  j["mfu"] = p.peak_known() ? nlohmann::ordered_json(p.mfu()) : nlohmann::ordered_json();
  if (*p.kinds.other) {
    j["other_steps"] = p.kinds.others(p.train_steps);
    j["other_steps_are"] = p.kinds.other;
  }
  j["evaluations"] = p.evaluations;
  j["total_seconds"] = p.total_seconds();
  j["total_tokens"] = p.tokens_per_step * p.train_steps;
}

std::string plan_json(const Plan& p, const RankMap* map) {
  ordered_json j;
  j["schema"] = "ltrain.plan.v1";
  j["recipe"] = p.recipe_name;
  j["device"] = device_name(p.device);
  if (p.device_bytes > 0) j["device_memory_bytes"] = p.device_bytes;
  j["world"] = p.world;
  j["threads_per_rank"] = p.threads_per_rank;
  if (p.node.cards > 0)
    j["node"] = {{"cards", p.node.cards}, {"card", p.node.card}, {"assumed", p.node.source == "assumed"}};
  j["parameters"] = p.parameters;
  if (p.sparse_parameters > 0) {
    j["sparse_parameters"] = p.sparse_parameters;
    j["sparse_from_step"] = p.sparse_from;
    j["sparse_steps"] = p.sparse.steps;
    j["skips_zeros"] = p.sparse.skips_zeros;
    if (p.sparse.speedup > 0) j["sparse_matmul_speedup"] = p.sparse.speedup;
  }
  if (p.quantized_parameters > 0) j["quantized_parameters"] = p.quantized_parameters;
  j["tokens_per_step"] = p.tokens_per_step;
  j["micro_batches"] = p.accumulation;
  for (const SitePlan& site : p.sites)
    j["sites"].push_back({{"micro_batches", site.micros}, {"step_seconds", site.seconds}});
  if (!p.better.shares.empty())
    j["better_shares"] = {{"diloco.shares", p.better.shares}, {"step_seconds", p.better.step_seconds}};
  j["train_steps"] = p.train_steps;
  j["profile"] = p.profile;
  j["profile_measured"] = p.profile_measured;
  j["profile_built_in"] = p.profile_built_in;
  if (p.profile_built_in) j["figures"] = figures_json(p.ranks.front().figures);
  j["network_bytes_per_second"] = p.network_bytes_per_second;
  j["network_given"] = p.network_given;
  j["network_source"] = p.network_source;
  if (!p.links.file.empty()) j["links"] = links_json(p.links);
  j["peak_flops"] = p.peak_flops;
  j["host_memory_bytes"] = p.host_bytes;
  j["fits"] = fits(p);
  add_limits(j, p);
  add_times(j, p);
  if (!p.attention.empty()) j["attention"] = p.attention;
  if (!p.overlap.empty()) j["overlap"] = p.overlap;
  if (!p.experts.empty()) j["experts"] = p.experts;
  if (!p.recompute.empty()) j["recompute"] = p.recompute;
  if (p.update)
    j["offload_optimizer_update"] = {{"chosen", p.update->host ? "cpu" : "device"},
                                     {"automatic", p.update->automatic},
                                     {"device_seconds", p.update->device_seconds},
                                     {"cpu_seconds", p.update->host_seconds}};
  j["placement_ops_checked"] = p.placement_ops;
  if (map) j["rank_map"] = ordered_json::parse(rank_map_json(*map));
  j["ranks"] = ordered_json::array();
  for (const RankPlan& r : p.ranks) j["ranks"].push_back(rank_json(r));
  return j.dump(1);
}

}  // namespace ltrain
