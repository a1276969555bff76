// Translation of recipes to Megatron-LM command lines and back, with the table of megatron_flags.h.
#pragma once
#include <string>
#include <vector>

#include "planner/exports/unsaid.h"

namespace ltrain::exports {

/// A flag and its value, "" for a switch. `standard`: the value is Megatron-LM's default.
struct FlagValue {
  std::string flag, value;
  bool standard = false;
};
struct FlagValues {
  std::vector<FlagValue> flags;
  std::vector<std::string> unsaid;
};
/// Flags of a recipe. Throws Error (usage) if Megatron-LM has none for the family.
FlagValues flags_of(const Recipe& recipe);
/// The flags as text: one per line, continued by backslashes, without Megatron-LM's defaults.
Exported to_megatron(const Recipe& recipe);

struct Imported {
  std::string yaml;                ///< a recipe, with comments on keys to set by hand
  std::vector<std::string> notes;  ///< the comments, for the terminal
};

/// Converts flags to a recipe. `line`: the flags, or a complete shell command that contains them. `world`:
/// number of ranks; 0: unknown. Throws Error (usage) with every flag that is unknown, refused, or has a wrong
/// number of values.
Imported from_megatron(const std::string& line, int world);

}  // namespace ltrain::exports
