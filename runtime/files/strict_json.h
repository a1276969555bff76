// JSON from outside, read without surprises: what the library would throw becomes a text.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace ltrain::data {

/// One JSON value in UTF-8 whose numbers a double or 64 bits hold, nested at most `depth` levels, and in
/// which no key stands twice in one object. Else `error` says what it is not, on one printable line, and the
/// value is null. Never throws.
nlohmann::json parse_strict(const std::string& text, int depth, std::string& error);

}  // namespace ltrain::data
