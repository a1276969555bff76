// The value of `where`: conditions on the fields of records.
#pragma once
#include <string>

#include "runtime/data/input/record_filter.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

/// Reads `{language: [en, de], score: {min: 0.5}}`. Returns what is wrong with it.
ValueError read_where(const Node& node, data::RecordFilter& out);
std::string write_where(const data::RecordFilter& where, bool json);

}  // namespace ltrain::recipe
