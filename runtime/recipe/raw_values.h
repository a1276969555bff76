// Values given by a recipe file, a config.json and the command line: one per canonical key.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/yaml_tree.h"

namespace ltrain::recipe {

struct RawValue {
  Node value;
  Place place;             ///< location of the key
  std::string written_as;  ///< differs from the path if an alias was used
};

struct RawValues {
  std::map<std::string, RawValue> values;  ///< keyed by canonical path
  std::vector<std::string> notes;
};

/// Adds the keys of a YAML document.
void add_document(const Node& root, RawValues& given, Diagnostics& diagnostics);
/// Adds one override: "key=value", "--section.key=value", "~key", "data.train.0.weight=2". A later override
/// replaces an earlier one.
void add_override(const std::string& argument, RawValues& given, Diagnostics& diagnostics);
/// Replaces each ${section.key} in a text by the value of that key.
void interpolate(RawValues& given, Diagnostics& diagnostics);

/// Adds model.* keys from a Hugging Face config.json (hf_config.cpp). Keys already in `given` are not
/// changed.
void add_hf_config(const std::string& path, const Place& from, RawValues& given, Diagnostics& diagnostics);

}  // namespace ltrain::recipe
