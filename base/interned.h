// Names that last: of ops, layers, tensors, axes, of which a program has some thousands.
#pragma once
#include <string_view>

namespace ltrain {

/// A copy of `text` that lasts as long as the process; of equal texts the same one. May be called by several
/// threads at once. What it copies is never freed: not for texts without bound.
std::string_view interned(std::string_view text);

}  // namespace ltrain
