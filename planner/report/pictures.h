// Drawings of a plan and of a search, and a page with all of them. For programs, boxes have their values as
// data- attributes, in bytes and seconds.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "planner/search/search.h"
#include "runtime/plan/plan_types.h"
#include "runtime/plan/rank_map.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Device memory of each planned rank as a stacked bar by kind, which adds up to total_bytes, next to the
/// available memory of a card or of this host per rank. With GPUs, also host memory.
std::string memory_svg(const Plan& plan);
/// A rank's step over its streams. Ops too short to be visible are merged with their neighbours. With a
/// pipeline: the rank's pass without bubbles.
std::string timeline_svg(const std::vector<TraceEntry>& entries, int rank);
/// The first ops of a step, few enough to be visible.
std::vector<TraceEntry> first_part(const std::vector<TraceEntry>& entries);
/// Nodes with their ranks and coordinates, and the bytes that a step sends within and between nodes. Draws
/// only the first of many nodes.
std::string rank_map_svg(const RankMap& map, const Plan& plan);
/// Step time against memory of the largest rank, for all layouts tried. Listed layouts have their numbers,
/// and a line connects the Pareto front.
std::string search_svg(const SearchResult& result, const Recipe& recipe, const SearchLimits& limits);

struct Picture {
  std::string name;   ///< "memory": name of its file and anchor in the page
  std::string title;  ///< caption
  std::string svg;
};
/// Drawings of one layout: memory, timeline of the slowest rank, map, and with a pipeline its schedule.
std::vector<Picture> plan_pictures(const Plan& plan, const Recipe& resolved, const MachineProfile& profile,
                                   const RankMap& map);

/// A self-contained page without scripts. `lead`: paragraphs with the main results. `text`: the full output
/// of the terminal.
std::string html_page(const std::string& title, const std::vector<std::string>& lead,
                      const std::vector<Picture>& pictures, const std::string& text);
/// "fits: ..." or "does not fit: ...", and the figures of a step, for the head of a page.
std::vector<std::string> plan_lead(const Plan& plan);

}  // namespace ltrain
