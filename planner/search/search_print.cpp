// Output of a search for people and for programs.
#include <algorithm>

#include "base/bytes_text.h"
#include "base/json/json.h"
#include "planner/search/search.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/plan_print.h"
#include "runtime/recipe/diagnostics.h"

namespace ltrain {
namespace {

using nlohmann::ordered_json;

/// Breakdown of a rank's step in seconds.
std::vector<std::pair<std::string, double>> spent(const FoundLayout& f) {
  const Plan& p = f.plan;
  const double step = p.step_seconds();
  double exposed = 0;
  std::vector<std::pair<std::string, double>> out;
  const auto slowest =
      std::max_element(p.ranks.begin(), p.ranks.end(),
                       [](const RankPlan& a, const RankPlan& b) { return a.step_seconds < b.step_seconds; });
  for (const auto& [axis, seconds] : slowest->exposed) {
    if (axis == "pp") continue;  // the bubble
    out.emplace_back("exposed " + axis, seconds);
    exposed += seconds;
  }
  const double bubble = p.bubble_share * p.action_seconds;
  out.emplace_back("bubble", bubble);
  out.emplace_back("compute", std::max(0.0, step - exposed - bubble));
  return out;
}

double tokens(const FoundLayout& f) { return static_cast<double>(f.plan.tokens_per_step); }

/// Differences of `f` to `best` in time per token, in percent of the best step.
std::string against(const FoundLayout& f, const FoundLayout& best) {
  std::vector<std::pair<std::string, double>> more;
  const double whole = best.plan.step_seconds() / tokens(best);
  const auto add = [&](const FoundLayout& of, double sign) {
    for (const auto& [what, seconds] : spent(of)) {
      auto it = std::find_if(more.begin(), more.end(), [&](const auto& m) { return m.first == what; });
      if (it == more.end()) it = more.insert(more.end(), {what, 0});
      it->second += sign * seconds / tokens(of) / whole * 100;
    }
  };
  add(f, 1), add(best, -1);
  std::stable_sort(more.begin(), more.end(),
                   [](const auto& a, const auto& b) { return std::abs(a.second) > std::abs(b.second); });
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(3, more.size()); ++i)
    if (std::abs(more[i].second) >= 0.05)
      text += fmt::format("{}{} {:+.1f} %", text.empty() ? "" : ", ", more[i].first, more[i].second);
  const double slower = (f.plan.step_seconds() / tokens(f) / whole - 1) * 100;
  return text.empty() ? "as the first"
                      : fmt::format("{:.1f} % {} than the first: {}", std::abs(slower),
                                    slower < 0 ? "shorter" : "longer", text);
}

std::string why_best(const FoundLayout& f) {
  std::string text;
  const double step = f.plan.step_seconds();
  for (const auto& [what, seconds] : spent(f))
    if (seconds / step >= 0.0005)
      text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", what, seconds / step * 100);
  return "of its step: " + text;
}

std::string table_head() {
  return fmt::format("  {:>3}  {:>12}  {:>6}  {:>10}  {:>7}  {:>9}  {}\n", "", "tokens/s/rank", "MFU",
                     "memory", "bubble", "exposed", "layout");
}

std::string table_row(const std::string& number, const FoundLayout& f, const Recipe& recipe) {
  const std::string mfu = f.plan.peak_known() ? fmt::format("{:.1f}%", f.plan.mfu() * 100) : "-";
  return fmt::format("  {:>3}  {:>13.1f}  {:>6}  {:>10}  {:>6.1f}%  {:>7.1f}ms  {}\n", number,
                     f.tokens_per_second_per_rank(), mfu, bytes_text(f.largest().total_bytes),
                     f.plan.bubble_share * 100, f.exposed_seconds() * 1e3, layout_text(f.layout, recipe));
}

/// Speed of a layout with even routing, if it is planned with a skew.
std::string even_text(const FoundLayout& f) {
  if (f.plan.even_step_seconds <= 0) return "";
  return fmt::format("; {:.1f} tokens/s/rank at even routing",
                     tokens(f) / f.plan.even_step_seconds / static_cast<double>(f.plan.world));
}

std::string settings_text(const FoundLayout& f) {
  std::string text;
  for (const auto& [key, value] : f.settings) text += fmt::format(" {}={}", key, value);
  return text;
}

std::string nothing_text(const SearchResult& s, const SearchLimits& limits) {
  if (s.advice.smallest.empty())
    return fmt::format(
        "no layout: the rules refuse all {} on {} ranks with what the recipe fixes; leave more of parallel, "
        "train.micro_batch_size and recompute open, or `ltrain recipe check` says which rule it is\n",
        s.looked_at, limits.world);
  const FoundLayout& least = s.advice.smallest.front();
  std::string out =
      fmt::format("no layout of {} fits on {} ranks; the smallest that was found:{}\n{}{}\n", s.allowed,
                  limits.world, settings_text(least), impossible_text(least.plan), fit_text(least.plan));
  if (limits.keep_free > 0)
    out +=
        fmt::format("{} more are to stay free; --keep-free 0 takes them too\n", bytes_text(limits.keep_free));
  out +=
      s.advice.fitting_world > 0
          ? fmt::format("it fits on {} ranks, the first of the doubles of {} for which a layout was found\n",
                        s.advice.fitting_world, limits.world)
          : fmt::format("no doubling of the {} ranks was found to help\n", limits.world);
  return out;
}

/// Options that the search covers only partly or not at all.
std::string left_out_text(const Recipe& r, const SearchLimits& limits) {
  const auto open = [&](const char* key) { return !r.origins || !r.origins->has(key); };
  const bool cuda = r.device == DeviceChoice::cuda;
  std::vector<std::string> few, last, none;
  if (limits.variants) {
    if (open("parallel.order")) few.emplace_back("the other parallel.order");
    if (open("parallel.tensor_mode")) few.emplace_back("parallel.tensor_mode 2d, 2.5d and 3d");
    if (open("recompute.granularity")) few.emplace_back("recompute.granularity: auto (two of them)");
    if (r.parallel.zero_stage == 3 && open("parallel.reshard_after_forward"))
      few.emplace_back("parallel.reshard_after_forward");
    if ((r.parallel.zero_stage == 3 || open("parallel.zero_stage")) && open("parallel.zero_layers"))
      few.emplace_back("parallel.zero_layers");
    if (open("parallel.overlap_micro_batches")) few.emplace_back("parallel.overlap_micro_batches");
    if (cuda && open("offload.optimizer.device")) few.emplace_back("offload.optimizer");
    if (limits.allow_fp8 && open("precision")) few.emplace_back("precision: fp8");
  }
  if (open("precision"))
    none.emplace_back(limits.allow_fp8 ? "precision: fp16" : "precision: fp8 (--allow-fp8) and fp16");
  std::vector<std::string>& offload = cuda && limits.variants ? last : none;
  if (open("offload.params.device")) offload.emplace_back("offload.params");
  if (open("offload.activations.device")) offload.emplace_back("offload.activations");
  if (open("parallel.schedule")) none.emplace_back("parallel.schedule: gpipe");
  if (open("parallel.context")) none.emplace_back("parallel.context above 16");
  if (open("train.micro_batch_size")) none.emplace_back("train.micro_batch_size above 16");
  std::string text;
  if (!few.empty()) text += fmt::format("tried of the fastest alone: {}\n", fmt::join(few, ", "));
  if (!last.empty()) text += fmt::format("tried where nothing else fits: {}\n", fmt::join(last, ", "));
  if (!none.empty()) text += fmt::format("not tried: {}\n", fmt::join(none, ", "));
  return text;
}

ordered_json layout_json(const FoundLayout& f, const Recipe& recipe) {
  ordered_json j;
  j["layout"] = layout_text(f.layout, recipe);
  j["settings"] = ordered_json::object();
  for (const auto& [key, value] : f.settings) j["settings"][key] = value;
  j["step_seconds"] = f.plan.step_seconds();
  j["tokens_per_second_per_rank"] = f.tokens_per_second_per_rank();
  j["mfu"] = f.plan.peak_known() ? nlohmann::ordered_json(f.plan.mfu()) : nlohmann::ordered_json();
  j["rank_bytes"] = f.largest().total_bytes;
  j["bubble_share"] = f.plan.bubble_share;
  j["exposed_seconds"] = f.exposed_seconds();
  j["expert_skew"] = f.plan.expert_skew;
  if (f.plan.even_step_seconds > 0) j["even_step_seconds"] = f.plan.even_step_seconds;
  j["bound_step_seconds"] = f.bound.step_seconds;
  j["bound_rank_bytes"] = f.bound.bytes;
  return j;
}

}  // namespace

std::string search_text(const SearchResult& s, const Recipe& recipe, const SearchLimits& limits) {
  std::string out = fmt::format(
      "search of {}: {} ranks, {} a node; {} layouts, {} that the rules allow, {} that may fit; {} tried, {} "
      "of them variants of the fastest\n",
      recipe.name, limits.world, limits.ranks_per_node, s.looked_at, s.allowed, s.may_fit,
      s.composed + s.whole, s.variants);
  out += fmt::format("passed over: {} whose memory cannot fit, {} that cannot be faster than what was found",
                     std::max<int64_t>(0, s.allowed - s.may_fit), s.slower);
  out += s.untried > 0
             ? fmt::format(
                   ", and {} that may be faster, since {:.0f} s were over; --seconds looks longer, or fix "
                   "some of the recipe's settings\n",
                   s.untried, s.seconds)
             : std::string("\n");
  if (limits.keep_free > 0)
    out += fmt::format("each leaves {} of memory free (--keep-free)\n", bytes_text(limits.keep_free));
  if (s.wrong_bounds > 0)
    out +=
        fmt::format("{} layouts are faster or smaller than their bounds: others may have been passed over\n",
                    s.wrong_bounds);
  if (s.found.empty()) return out + "\n" + nothing_text(s, limits);
  const Plan& first = s.found[0].plan;
  out +=
      fmt::format("priced by {} profile {}", first.profile_measured ? "the measured" : "the", first.profile);
  if (first.device_bytes > 0) out += fmt::format("; a card has {}", bytes_text(first.device_bytes));
  out += "\n" + sources_text(first);
  out += "\nthe fastest that fit, each planned whole";
  if (limits.tie > 0)
    out += fmt::format("; of those within {:g} % of the fastest the smallest come first", 100 * limits.tie);
  out += "\n" + table_head();
  for (size_t i = 0; i < s.found.size(); ++i) {
    out += table_row(std::to_string(i + 1), s.found[i], recipe);
    out += fmt::format("       {}{}\n", i == 0 ? why_best(s.found[0]) : against(s.found[i], s.found[0]),
                       even_text(s.found[i]));
  }
  out += "\nless memory for more time, of all that were tried\n" + table_head();
  for (const FoundLayout& f : s.pareto) out += table_row("", f, recipe);
  out += "\n" + left_out_text(recipe, limits);
  out += fmt::format("\nthe first:{}\n", settings_text(s.found[0]));
  return out;
}

std::string search_json(const SearchResult& s, const Recipe& recipe, const SearchLimits& limits) {
  ordered_json j;
  j["schema"] = "ltrain.search.v1";
  j["recipe"] = recipe.name;
  j["world"] = limits.world;
  j["ranks_per_node"] = limits.ranks_per_node;
  if (!s.found.empty()) {
    const Plan& first = s.found[0].plan;
    j["profile"] = first.profile;
    j["profile_measured"] = first.profile_measured;
    if (first.device_bytes > 0) j["device_memory_bytes"] = first.device_bytes;
    j["network_source"] = first.network_source;
    if (!first.links.file.empty()) j["links"] = links_json(first.links);
    for (const FigureUse& f : first.ranks.front().figures)
      j["figures"].push_back(
          {{"figure", f.name}, {"source", figure_source_name(f.source)}, {"reference", f.reference}});
  }
  j["looked_at"] = s.looked_at;
  j["allowed"] = s.allowed;
  j["may_fit"] = s.may_fit;
  j["composed"] = s.composed;
  j["whole"] = s.whole;
  j["variants"] = s.variants;
  j["untried"] = s.untried;
  j["slower"] = s.slower;
  j["keep_free_bytes"] = limits.keep_free;
  j["tie"] = limits.tie;
  j["wrong_bounds"] = s.wrong_bounds;
  j["seconds"] = s.seconds;
  j["bound_seconds"] = s.bound_seconds;
  const auto list = [&](const char* key, const std::vector<FoundLayout>& of) {
    j[key] = ordered_json::array();
    for (const FoundLayout& f : of) j[key].push_back(layout_json(f, recipe));
  };
  list("found", s.found);
  list("pareto", s.pareto);
  list("smallest", s.advice.smallest);
  j["fitting_world"] = s.advice.fitting_world;
  return j.dump(1);
}

std::string explain_text(const FoundLayout& a, const FoundLayout& b, const Recipe& recipe) {
  std::string out = fmt::format("A: {}\nB: {}\n\n  {:<28}{:>16}{:>16}\n", layout_text(a.layout, recipe),
                                layout_text(b.layout, recipe), "of a step", "A", "B");
  std::vector<std::string> names;
  const auto first = spent(a), second = spent(b);
  for (const auto* list : {&first, &second})
    for (const auto& [what, seconds] : *list)
      if (std::find(names.begin(), names.end(), what) == names.end()) names.push_back(what);
  const auto of = [](const auto& list, const std::string& what) {
    for (const auto& [name, value] : list)
      if (name == what) return value;
    return decltype(list.front().second){};
  };
  const auto ms = [&](const std::string& what, double x, double y) {
    out += fmt::format("  {:<28}{:>13.1f} ms{:>13.1f} ms\n", what, x * 1e3, y * 1e3);
  };
  for (const std::string& what : names) ms(what, of(first, what), of(second, what));
  ms("step", a.plan.step_seconds(), b.plan.step_seconds());
  out += fmt::format("  {:<28}{:>16.1f}{:>16.1f}\n", "tokens/s/rank", a.tokens_per_second_per_rank(),
                     b.tokens_per_second_per_rank());
  out += fmt::format("\n  {:<28}{:>16}{:>16}\n", "memory of the worst rank", "A", "B");
  const auto bytes = [&](std::string_view what, auto of_rank) {
    const int64_t x = of_rank(a.largest()), y = of_rank(b.largest());
    if (x > 0 || y > 0) out += fmt::format("  {:<28}{:>16}{:>16}\n", what, bytes_text(x), bytes_text(y));
  };
  for (int k = 0; k < kMemoryKindCount; ++k)
    bytes(memory_kind_name(static_cast<MemoryKind>(k)),
          [&](const RankPlan& r) { return r.arena.by_kind[static_cast<size_t>(k)]; });
  bytes("gaps between tensors", [](const RankPlan& r) { return r.arena.arena_bytes - r.arena.live_bytes; });
  bytes("outside the arena", [](const RankPlan& r) { return r.total_bytes - r.arena.arena_bytes; });
  bytes("total", [](const RankPlan& r) { return r.total_bytes; });
  return out;
}

}  // namespace ltrain
