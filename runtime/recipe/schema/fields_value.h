// The value of `fields`: names that the fields of conversations have in a file.
#pragma once
#include <map>
#include <string>

#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

/// Reads `{messages: dialog, role: speaker}`. Returns what is wrong with it.
ValueError read_fields(const Node& node, std::map<std::string, std::string>& out);
std::string write_fields(const std::map<std::string, std::string>& fields, bool json);

}  // namespace ltrain::recipe
