// A YAML document as a tree that keeps what yaml-cpp's own nodes lose: duplicate keys, the place of each key
// and value, and whether a scalar was quoted.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::recipe {

/// Where a value was written. `line` 0: the source as a whole (an override on the command line).
struct Place {
  std::string source;  ///< "recipe.yaml" or "command line"
  int line = 0, column = 0;
  std::string text() const;  ///< "recipe.yaml:3:5"
};

struct Node {
  enum Kind { null, scalar, list, map } kind = null;
  struct Entry;
  std::string text;     ///< scalar only
  bool quoted = false;  ///< scalar only: "4" is no integer
  Place place;
  std::vector<Node> items;     ///< list only
  std::vector<Entry> entries;  ///< map only, in written order, duplicates kept
};

struct Node::Entry {
  std::string key;
  Place place;  ///< of the key
  Node value;
};

/// Throws Error (usage): syntax, several documents, tags, keys that are not scalars, anchors that expand
/// without bound, size over 1 MiB.
Node parse_yaml(std::string_view text, const std::string& source);

/// How a value is shown in a message, shortened: `4`, `"4"`, `[1, 2]`, `{a: 1}`.
std::string show(const Node& node);

}  // namespace ltrain::recipe
