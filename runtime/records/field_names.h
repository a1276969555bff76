// The error for a field that a file does not have.
#pragma once
#include <string>
#include <vector>

namespace ltrain::records {

/// Throws Error (data) with the names of the fields that the file has.
[[noreturn]] void no_such_field(const std::string& file, const std::string& field,
                                const std::vector<std::string>& fields);

}  // namespace ltrain::records
