// Recipes as Megatron-LM's command lines, and back, by the table of megatron_flags.h.
#pragma once
#include <string>
#include <vector>

#include "runtime/plan/exports/unsaid.h"

namespace ltrain::exports {

/// The flags of a recipe, one a line, continued by backslashes. Throws Error (usage) where Megatron-LM has no
/// flags for the family.
Exported to_megatron(const Recipe& recipe);

struct Imported {
  std::string yaml;                ///< a recipe, with comments on what is to be set by hand
  std::vector<std::string> notes;  ///< the same, for the terminal
};

/// `line`: the flags, or a shell's whole command with them. `world`: ranks, where they are known; else 0.
/// Throws Error (usage) with every flag that is unknown, refused, or has a wrong number of values.
Imported from_megatron(const std::string& line, int world);

}  // namespace ltrain::exports
