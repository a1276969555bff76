// Descriptors that a launcher hands to its ranks, with their numbers in variables. They are used only if the
// variables of a launcher are set too.
#pragma once
#include <optional>
#include <string>

#include "base/fd.h"
#include "runtime/launch/environment/environment.h"

namespace ltrain {

inline constexpr const char *kRecipeVariable = "LTRAIN_RECIPE_FD",  ///< sealed file with the recipe's text
    *kJoinedVariable = "LTRAIN_JOINED_FD",  ///< pipe that gets a byte once the rank has joined
        *kLockVariable = "LTRAIN_LOCK_FD";  ///< lock of output_dir

/// Creates an anonymous, sealed file with this text.
Fd make_handed_text(const std::string& text);
/// Reads the text handed in this variable; empty if this process is not a launcher's rank or got no text.
/// Throws Error (usage) for another kind of file, or for text longer than `most_bytes`.
std::optional<std::string> handed_text(const Variables& variables, const char* variable, size_t most_bytes);
/// Tells the launcher that this rank has joined, if the launcher asked for it.
void tell_joined(const Variables& variables);

}  // namespace ltrain
