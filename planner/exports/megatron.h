// Recipes as Megatron-LM's command lines, and back, by the table of megatron_flags.h.
#pragma once
#include <string>
#include <vector>

#include "planner/exports/unsaid.h"

namespace ltrain::exports {

/// A flag and what follows it, "" for a switch. `standard`: the value is Megatron-LM's default.
struct FlagValue {
  std::string flag, value;
  bool standard = false;
};
struct FlagValues {
  std::vector<FlagValue> flags;
  std::vector<std::string> unsaid;
};
/// The flags of a recipe. Throws Error (usage) where Megatron-LM has none for the family.
FlagValues flags_of(const Recipe& recipe);
/// The same as text, one flag a line, continued by backslashes, without those of Megatron-LM's defaults.
Exported to_megatron(const Recipe& recipe);

struct Imported {
  std::string yaml;                ///< a recipe, with comments on what is to be set by hand
  std::vector<std::string> notes;  ///< the same, for the terminal
};

/// `line`: the flags, or a shell's whole command with them. `world`: ranks, where they are known; else 0.
/// Throws Error (usage) with every flag that is unknown, refused, or has a wrong number of values.
Imported from_megatron(const std::string& line, int world);

}  // namespace ltrain::exports
