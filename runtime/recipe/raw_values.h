// What a recipe file, a config.json and the command line give, as one value per canonical key.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/yaml_tree.h"

namespace ltrain::recipe {

struct RawValue {
  Node value;
  Place place;             ///< of the key
  std::string written_as;  ///< differs from the path when an alias was used
};

struct RawValues {
  std::map<std::string, RawValue> values;  ///< by canonical path
  std::vector<std::string> notes;
};

/// The keys of a whole document.
void add_document(const Node& root, RawValues& given, Diagnostics& diagnostics);
/// "key=value", "--section.key=value", "~key", "data.train.0.weight=2"; later ones win.
void add_override(const std::string& argument, RawValues& given, Diagnostics& diagnostics);
/// Replaces ${section.key} in texts by the value of that key.
void interpolate(RawValues& given, Diagnostics& diagnostics);

/// hf_config.cpp: model.* keys out of a Hugging Face config.json; those that `given` has already stay.
void add_hf_config(const std::string& path, const Place& from, RawValues& given, Diagnostics& diagnostics);

}  // namespace ltrain::recipe
