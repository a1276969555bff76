// Texts by which ranks report the result of a step that all of them make: "ok" or "error", then the rest.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"

namespace ltrain {

inline std::string ok_text(const std::string& rest) { return "ok " + rest; }
inline std::string error_text(const std::string& rest) { return "error " + rest; }
/// An error with its code, which throw_error() throws again on another rank.
std::string error_text(const Error& error);
[[noreturn]] void throw_error(const std::string& text);
inline bool is_ok(const std::string& text) { return text.compare(0, 3, "ok ") == 0; }
inline std::string rest_of(const std::string& text) { return text.substr(text.find(' ') + 1); }

/// Errors of all ranks, with equal ones merged: "rank 1 and 2 more: ..."; empty: none.
std::string join_errors(const std::vector<std::string>& texts);

}  // namespace ltrain
