// Sites of DiLoCo that differ: in their shares of the batch, or in their machines.
#pragma once
#include <utility>
#include <vector>

#include "runtime/plan/make_plan.h"

namespace ltrain {

/// Sites with equal values have equal plans: micro-batches of a data rank, and its machine.
using SiteKind = std::pair<int64_t, const MachineProfile*>;
SiteKind site_kind(const Recipe& resolved, const MachineProfile& profile, int site);

/// The first rank of each pipeline stage in the first site of each kind but that of site 0.
std::vector<int> ranks_of_other_sites(const Recipe& resolved, const MachineProfile& profile);

/// Adds the step of each site, and shares with which the slowest one would be faster, if sites differ.
/// `plan.ranks`: planned, of ranks_to_plan().
void plan_sites(Plan& plan, const Recipe& resolved, const MachineProfile& profile);

/// Micro-batches of a data rank by site, each at least 1, with which the slowest site takes least, where a
/// micro-batch of a site takes `seconds`. `micros`: of all sites together.
std::vector<int64_t> equalized_micros(const std::vector<double>& seconds, int64_t micros);

}  // namespace ltrain
