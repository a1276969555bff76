// Strict parsing of untrusted JSON. Errors of the library are returned as text.
#pragma once
#include <string>

#include "base/json/json.h"

namespace ltrain::data {

/// Parses one JSON value in UTF-8 whose numbers fit a double or 64 bits, nested at most `depth` levels,
/// without duplicate keys in an object. Otherwise `error` gives the reason on one printable line and the
/// value is null. Never throws.
nlohmann::json parse_strict(const std::string& text, int depth, std::string& error);

}  // namespace ltrain::data
