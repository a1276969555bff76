// The parts of the schema table that have files of their own.
#pragma once
#include <vector>

#include "runtime/recipe/schema.h"

namespace ltrain::recipe {

inline constexpr double kMaxSteps = 1e15;

void add_optimizer_keys(std::vector<Key>& table);
void add_schedule_keys(std::vector<Key>& table);

}  // namespace ltrain::recipe
