// A plan and a search as drawings, and a page with all of them. Boxes have what they stand for as data-
// attributes, in whole bytes and in seconds, for programs.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "planner/search/search.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/rank_map.h"

namespace ltrain {

/// Memory of each planned rank's device as a bar of its kinds, which add up to total_bytes, and what a card
/// or this host's share for a rank has; where ranks are on GPUs, the host's too.
std::string memory_svg(const Plan& plan);
/// A rank's step over its streams. Work that is too short to be seen is drawn together with its neighbours.
/// With a pipeline: its pass without bubbles.
std::string timeline_svg(const std::vector<TraceEntry>& entries, int rank);
/// The first ops of a step, few enough for each to be seen.
std::vector<TraceEntry> first_part(const std::vector<TraceEntry>& entries);
/// Nodes with their ranks and coordinates, with the bytes that a step sends within a node and to others.
/// Of many nodes the first ones.
std::string rank_map_svg(const RankMap& map, const Plan& plan);
/// Time of a step against memory of the rank that takes most, of all that were tried; those that are listed
/// have their numbers, and a line joins those that none is both faster and smaller than.
std::string search_svg(const SearchResult& result, const Recipe& recipe, const SearchLimits& limits);

struct Picture {
  std::string name;   ///< "memory": of its file, and of its place in the page
  std::string title;  ///< what it shows
  std::string svg;
};
/// Those of one layout: memory, timeline of the slowest rank, map, and schedule where there is a pipeline.
std::vector<Picture> plan_pictures(const Plan& plan, const Recipe& resolved, const MachineProfile& profile,
                                   const RankMap& map);

/// A page without scripts that asks no other file or host for anything. `lead`: what matters most, in
/// paragraphs; `text`: what the terminal gets, whole.
std::string html_page(const std::string& title, const std::vector<std::string>& lead,
                      const std::vector<Picture>& pictures, const std::string& text);
/// "fits: ..." or "does not fit: ...", and the figures of a step, for the head of a page.
std::vector<std::string> plan_lead(const Plan& plan);

}  // namespace ltrain
