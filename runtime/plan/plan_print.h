// Plans as texts, JSON and traces.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/plan_types.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct RankMap;

/// Text of a plan. `map` (rank_map.h): locations of the ranks. `all_ranks`: the full map, and the memory of
/// every planned rank; else that of the largest.
std::string plan_text(const Plan& plan, const Recipe& recipe, const RankMap* map = nullptr,
                      bool all_ranks = false);
std::string plan_json(const Plan& plan, const RankMap* map = nullptr);
/// Key `links` of plans that measured links price.
nlohmann::ordered_json links_json(const MeasuredLinks& links);
/// Measured, published and assumed figures of the profile, in lines for people.
std::string sources_text(const Plan& plan);
/// Breakdown of a rank's memory, for people.
std::string memory_text(const RankPlan& rank);

/// "offload.optimizer.update: auto chose cpu: 12.3 ms a step less than device, by the plan"
std::string update_text(const UpdateChoice& choice);
/// Name and bytes of each kind of offloaded tensor; kinds without offload are omitted.
std::vector<std::pair<std::string, int64_t>> offloaded_text(const OffloadedBytes& bytes);
/// Chrome trace of one rank's step.
std::string plan_trace(const Recipe& resolved, const MachineProfile& profile, int rank);

}  // namespace ltrain
