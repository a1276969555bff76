// Reading the small text files that a user names: recipes and config.json.
#pragma once
#include <string>

namespace ltrain::recipe {

inline constexpr size_t kMaxFileBytes = 1 << 20;

/// The whole of a regular file of at most `most` bytes; "" or what is wrong. A folder, a pipe, a socket or a
/// device is refused, and the call never waits for another process. `error`: errno where the file cannot be
/// opened, else 0.
std::string read_small_file(const std::string& path, std::string& text, size_t most = kMaxFileBytes,
                            int* error = nullptr);

}  // namespace ltrain::recipe
