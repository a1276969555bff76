// Layouts that a recipe leaves open and its rules allow.
#pragma once
#include <functional>

#include "planner/search/layout.h"

namespace ltrain {

/// Calls `found` with each layout of an unresolved recipe that its rules allow on `world` ranks. Settings
/// given in the recipe are kept. Varies tensor (1d), pipeline with every schedule except gpipe and with two
/// or four interleaved chunks, context up to 16 ranks and its communication, expert and expert_tensor, ZeRO
/// and its shard group, micro-batches up to 16 sequences, recompute, and bf16 if no precision is given.
/// Returns the number of layouts considered, including refused ones.
int64_t for_each_layout(const Recipe& recipe, const SearchLimits& limits,
                        const std::function<void(const Layout&)>& found);

/// Returns whether the rules allow an unresolved recipe on these ranks.
bool rules_allow(const Recipe& recipe, const SearchLimits& limits);

}  // namespace ltrain
