#include <algorithm>

#include "base/bytes_text.h"
#include "base/svg.h"
#include "parallel/pipeline/draw.h"
#include "planner/report/pictures.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/schedule_plan.h"

namespace ltrain {
namespace {

const RankPlan& slowest(const Plan& plan) {
  return *std::max_element(plan.ranks.begin(), plan.ranks.end(), [](const RankPlan& a, const RankPlan& b) {
    return a.step_seconds < b.step_seconds;
  });
}

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1600px;padding:0 1em;color:#222}"
    "h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}"
    ".picture{overflow-x:auto;border:1px solid #ccc;padding:6px;background:#fff}"
    "pre{overflow-x:auto;background:#f6f6f6;padding:1em;font-size:13px}"
    ".verdict{font-weight:bold}.no{color:#a00000}nav a{margin-right:1.2em}";

}  // namespace

std::vector<Picture> plan_pictures(const Plan& plan, const Recipe& recipe, const MachineProfile& profile,
                                   const RankMap& map) {
  const int rank = slowest(plan).rank;
  const std::vector<TraceEntry> entries = step_entries(recipe, profile, rank);
  std::vector<Picture> out;
  out.push_back({"memory", "Memory of ranks by kind", memory_svg(plan)});
  out.push_back({"timeline",
                 plan.stages > 1
                     ? "A step of the slowest rank over its streams, without the pipeline's bubbles"
                     : "A step of the slowest rank over its streams",
                 timeline_svg(entries, rank)});
  out.push_back({"detail", "The first ops of that step", timeline_svg(first_part(entries), rank)});
  if (recipe.parallel.pipeline > 1) {
    const SchedulePlan schedule =
        plan_schedule(recipe, layer_costs(recipe, profile), activation_limit(recipe, profile));
    out.push_back({"schedule", "The pipeline schedule",
                   pipeline::draw_svg(schedule.schedule, schedule.timing,
                                      fmt::format("costs in seconds by the profile {}", profile.source))});
  }
  out.push_back({"map", "Ranks on nodes, and what a step sends", rank_map_svg(map, plan)});
  return out;
}

std::vector<std::string> plan_lead(const Plan& plan) {
  const RankPlan& r = slowest(plan);
  return {fit_text(plan),
          fmt::format(
              "A step takes {:.1f} ms: {:.0f} tokens/s on {} ranks, {:.1f} a rank{}. Of the "
              "slowest rank's step {:.1f} ms are exposed communication; {:.1f} % of the pipeline is bubble.",
              plan.step_seconds() * 1e3, plan.tokens_per_second(), plan.world,
              plan.tokens_per_second() / plan.world,
              plan.peak_known() ? fmt::format(", MFU {:.1f} %", plan.mfu() * 100) : "",
              r.exposed_comm_seconds() * 1e3, plan.bubble_share * 100),
          fmt::format("Planned by the profile {}. Nothing was run.", plan.profile)};
}

std::string html_page(const std::string& title, const std::vector<std::string>& lead,
                      const std::vector<Picture>& pictures, const std::string& text) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
      escape_markup(title), kStyle);
  for (size_t i = 0; i < lead.size(); ++i)
    out += fmt::format("<p{}>{}</p>\n",
                       i > 0                                          ? ""
                       : lead[0].find("not fit") != std::string::npos ? " class=\"verdict no\""
                                                                      : " class=\"verdict\"",
                       escape_markup(lead[i]));
  out += "<nav>";
  for (const Picture& p : pictures)
    out += fmt::format("<a href=\"#{}\">{}</a>", escape_markup(p.name), escape_markup(p.name));
  out += "<a href=\"#text\">text</a></nav>\n";
  for (const Picture& p : pictures)
    out += fmt::format("<h2 id=\"{}\">{}</h2>\n<div class=\"picture\">\n{}</div>\n", escape_markup(p.name),
                       escape_markup(p.title), p.svg);
  return out +
         fmt::format("<h2 id=\"text\">As text</h2>\n<pre>{}</pre>\n</body>\n</html>\n", escape_markup(text));
}

}  // namespace ltrain
