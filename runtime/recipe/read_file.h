// Reading of small text files that a user names: recipes and config.json.
#pragma once
#include <string>

namespace ltrain::recipe {

inline constexpr size_t kMaxFileBytes = 1 << 20;

/// Reads a regular file of at most `most` bytes into `text`. Returns "" or the reason for a failure. Fails
/// for a folder, pipe, socket or device, and never blocks on another process. `error`: errno if the file
/// cannot be opened, else 0.
std::string read_small_file(const std::string& path, std::string& text, size_t most = kMaxFileBytes,
                            int* error = nullptr);

}  // namespace ltrain::recipe
