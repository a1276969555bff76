// Byte-pair merges by rank: the adjacent pair whose joint token has the lowest rank becomes that token, the
// leftmost pair first among equals, until no pair forms a token.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer/flat_map.h"

namespace ltrain::data {

struct BpeMerge {
  int32_t left = -1, right = -1, id = -1;  ///< two tokens, and the merged token
  /// The leftmost of several pairs with the same rank merges first.
  int32_t rank = -1;
};

/// Tables of a vocabulary; const and shared by threads.
class BpeTable {
 public:
  /// `tokens` by rank (= id), as checked by read_rank_file(). Two tokens merge if their joined bytes are a
  /// token.
  explicit BpeTable(std::vector<std::string> tokens);
  /// `tokens` by id, distinct, with "" for unused ids. `merges`: pairs that merge; of a repeated pair the
  /// last one counts.
  BpeTable(std::vector<std::string> tokens, const std::vector<BpeMerge>& merges);

  const std::string& token(int32_t id) const { return tokens_[id]; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  /// Id of the token for this single byte, or -1. With ranks every byte has one.
  int32_t byte_id(unsigned char b) const { return byte_ids_[b]; }
  /// Id of the token with exactly these bytes, or -1.
  int32_t find(std::string_view bytes) const;
  struct Merged {
    int32_t rank = -1, id = -1;
  };
  /// Merged token of the two; rank -1: they do not merge.
  Merged merged(int32_t left, int32_t right) const;

 private:
  void index_tokens();

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;  // keys are views of tokens_
  FlatMap<Merged> merges_;                             // key: pair of ids
  int32_t byte_ids_[256];
};

/// Merges the ids from symbols[first] on. Takes n log n time and, for many ids, about 30 bytes of memory per
/// id.
void bpe_merge(const BpeTable& table, std::vector<int32_t>& symbols, size_t first);

/// Two implementations with the same result. The short one scans the ranks of all pairs at each merge, which
/// is quadratic but faster for few ids.
void bpe_merge_short(const BpeTable& table, std::vector<int32_t>& symbols, size_t first);
void bpe_merge_long(const BpeTable& table, std::vector<int32_t>& symbols, size_t first);

/// Appends the ids of `piece`, merged from single bytes, each of which must be a token.
void bpe_merge(const BpeTable& table, std::string_view piece, std::vector<int32_t>& out);

}  // namespace ltrain::data
