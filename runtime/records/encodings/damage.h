// Damage in a file, found by a decoder that does not know the file. The reader above adds file and position.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <stdexcept>

namespace ltrain::records {

using Bytes = std::span<const uint8_t>;

struct Damage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws Damage with a formatted text.
template <class... Args>
[[noreturn]] void damaged(fmt::format_string<Args...> text, Args&&... args) {
  throw Damage(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace ltrain::records
