// A YAML document as a tree with information that yaml-cpp's nodes drop: duplicate keys, the location of each
// key and value, and the quoting of scalars.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::recipe {

/// Location of a value. `line` 0: the source as a whole (an override on the command line).
struct Place {
  std::string source;  ///< "recipe.yaml" or "command line"
  int line = 0, column = 0;
  std::string text() const;  ///< "recipe.yaml:3:5"
};

struct Node {
  enum Kind { null, scalar, list, map } kind = null;
  struct Entry;
  std::string text;     ///< scalar only
  bool quoted = false;  ///< scalar only: "4" in quotes is text, not an integer
  Place place;
  std::vector<Node> items;     ///< list only
  std::vector<Entry> entries;  ///< map only, in file order, with duplicates
};

struct Node::Entry {
  std::string key;
  Place place;  ///< location of the key
  Node value;
};

/// Parses one YAML document. Throws Error (usage) for syntax errors, several documents, tags, keys that are
/// not scalars, anchors that expand without bound, and text over 1 MiB.
Node parse_yaml(std::string_view text, const std::string& source);

/// Short text of a value for messages: `4`, `"4"`, `[1, 2]`, `{a: 1}`.
std::string show(const Node& node);

}  // namespace ltrain::recipe
