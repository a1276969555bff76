// One string out of one JSON record.
#pragma once
#include <string>
#include <string_view>

namespace ltrain::data {

/// The string under the top-level `key` of the object in `line`. Error (data), naming `path` and
/// `line_number`, for what is not one JSON object in UTF-8, lacks the key, has it twice, or has something
/// else under it.
std::string json_text(std::string_view line, const std::string& key, const std::string& path,
                      int64_t line_number);

}  // namespace ltrain::data
