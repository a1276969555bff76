// Whole text files.
#pragma once
#include <string>

namespace ltrain {

/// Writes `text` to `path`, which may be a device such as /dev/stdout. Throws Error (storage).
void write_file(const std::string& path, const std::string& text);
/// Writes `text` to PATH.tmp and renames it, so that readers see the old or the new text. Throws Error
/// (storage).
void replace_file(const std::string& path, const std::string& text);

}  // namespace ltrain
