// An unnamed copy of data that cannot be read at any offset: of a pipe, or of a compressed file.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/files/file.h"

namespace ltrain::data {

/// Copies what `read(to, bytes)` returns until it returns 0, into an unnamed file in $TMPDIR, else /tmp.
/// `name`: for messages. Throws Error (storage) if the copy cannot be written.
std::shared_ptr<InputFile> temporary_copy(const std::string& name,
                                          const std::function<int64_t(void* to, int64_t bytes)>& read);

/// Copies a pipe, a terminal, or standard input (`path` is -).
std::shared_ptr<InputFile> copy_stream(const std::string& path, const std::string& name);

}  // namespace ltrain::data
