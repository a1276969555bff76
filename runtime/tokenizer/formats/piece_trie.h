// Search for all pieces that start at a position of a text, byte by byte.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/flat_map.h"

namespace ltrain::data {

/// A trie with all edges in one hash table. Once filled, it is const and shared by threads.
class PieceTrie {
 public:
  PieceTrie() { std::fill(std::begin(first_), std::end(first_), -1); }

  /// Adds a piece with `value` >= 0. Of a repeated piece the first one counts.
  void add(std::string_view piece, int32_t value) {
    if (piece.empty()) return;
    int32_t& root = first_[static_cast<unsigned char>(piece[0])];
    if (root < 0) root = new_node();
    int32_t node = root;
    for (const char c : piece.substr(1)) {
      const auto byte = static_cast<unsigned char>(c);
      int32_t to = next(node, byte);
      if (to < 0) {
        to = new_node();
        edges_[key_of(node, byte)] = to;
      }
      node = to;
    }
    if (values_[node] < 0) values_[node] = value;
  }
  bool empty() const { return values_.empty(); }

  /// Node after the first byte, or after one more byte; -1: no piece continues this way.
  int32_t first(unsigned char byte) const { return first_[byte]; }
  int32_t next(int32_t node, unsigned char byte) const {
    const int32_t* to = edges_.find(key_of(node, byte));
    return to ? *to : -1;
  }
  /// Value of the piece that ends in the node; -1: none.
  int32_t value(int32_t node) const { return values_[node]; }

  /// Returns the length in bytes of the longest piece at the start of `text`, and sets its value; 0: no
  /// piece.
  size_t longest(std::string_view text, int32_t& value) const {
    size_t found = 0;
    if (text.empty()) return 0;
    int32_t node = first(static_cast<unsigned char>(text[0]));
    for (size_t at = 1; node >= 0; ++at) {
      if (values_[node] >= 0) {
        found = at;
        value = values_[node];
      }
      if (at == text.size()) break;
      node = next(node, static_cast<unsigned char>(text[at]));
    }
    return found;
  }

 private:
  static uint64_t key_of(int32_t node, unsigned char byte) { return static_cast<uint64_t>(node) << 8 | byte; }
  int32_t new_node() {
    values_.push_back(-1);
    return static_cast<int32_t>(values_.size()) - 1;
  }

  FlatMap<int32_t> edges_;  // key: node and byte
  std::vector<int32_t> values_;
  int32_t first_[256];
};

}  // namespace ltrain::data
