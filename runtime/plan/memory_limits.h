// Limits of memory that a plan must fit, and what would make it fit.
#pragma once
#include <string>
#include <vector>

#include "kernels/tensor/out_of_memory.h"
#include "runtime/plan/plan_types.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Memory limits of the plan: a card's memory, and this host's if ranks would run on it. Empty if both are
/// unknown.
std::vector<MemoryLimit> memory_limits(const Plan& plan);
bool fits(const Plan& plan);
/// Explanation in two lines, for memory and for speed, if weights, gradients and optimizer state alone exceed
/// the memory of all cards; else empty.
std::string impossible_text(const Plan& plan);
/// "fits: a rank needs 61.2 GiB, a card has 74.5 GiB", or "does not fit: ...; enough by itself: ...". If no
/// single change is known to be enough, "does not fit: ...; what would help: ...".
std::string fit_text(const Plan& plan);
/// Throws Error (does_not_fit) with the itemised sum if a rank exceeds its card's memory, or the ranks of a
/// host exceed the host's.
void check_memory(const Plan& plan);
/// Planned bytes that a process has on its GPU before it asks for memory.
int64_t context_bytes(const RankPlan& rank);
/// Text after a request to memory has failed: what the rank holds by its plan, and for a GPU changes of the
/// recipe that fit into its part of the GPU. Plans these changes. `has_arena`: the arena is allocated.
std::string out_of_memory_text(const OutOfMemory& e, const Recipe& resolved, MachineProfile profile,
                               const RankPlan& rank, bool has_arena);
/// Settings that would need less memory than the resolved `recipe`.
std::vector<std::string> smaller_settings(const Recipe& recipe);
/// Settings that make the plan fit on their own, with the resulting memory and step time, fastest first:
/// "parallel.zero_stage: 2 (a rank needs 58.9 GiB, a step takes 1.2 % longer)". `plan`: plan of `resolved`,
/// which does not fit. Plans each setting.
std::vector<std::string> enough_settings(const Recipe& resolved, const MachineProfile& profile,
                                         const Plan& plan);

}  // namespace ltrain
