// Permanent names: ops, layers, tensors, axes. A program has some thousands of them.
#pragma once
#include <string_view>

namespace ltrain {

/// Returns a copy of `text` that lives as long as the process; equal texts share one copy. Thread-safe.
/// Copies are never freed: only for bounded sets of texts.
std::string_view interned(std::string_view text);

}  // namespace ltrain
