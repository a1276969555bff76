// What a launcher hands to its ranks beside variables: descriptors whose numbers are in variables. They are
// believed only where the variables of a launcher are there, too.
#pragma once
#include <optional>
#include <string>

#include "base/fd.h"
#include "runtime/launch/environment.h"

namespace ltrain {

inline constexpr const char *kRecipeVariable = "LTRAIN_RECIPE_FD",  ///< a sealed file: the recipe's text
    *kJoinedVariable = "LTRAIN_JOINED_FD",  ///< a pipe: a byte once the rank has joined
        *kLockVariable = "LTRAIN_LOCK_FD";  ///< the lock of output_dir

/// A file without a name that has this text for ever.
Fd make_handed_text(const std::string& text);
/// Of the variable; empty where this process is not a launcher's rank or was not handed it. Throws Error
/// (usage) for what is no such file, or longer than `most_bytes`.
std::optional<std::string> handed_text(const Variables& variables, const char* variable, size_t most_bytes);
/// Tells the launcher, if it wants to know.
void tell_joined(const Variables& variables);

}  // namespace ltrain
