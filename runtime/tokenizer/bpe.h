// Byte-pair merges by rank: again and again the adjacent pair whose joint token has the lowest rank becomes
// that token, the leftmost of equals first, until no pair is a token.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer/flat_map.h"

namespace ltrain::data {

struct BpeMerge {
  int32_t left = -1, right = -1, id = -1;  ///< two tokens, and the one that they become
  int32_t rank = -1;                       ///< of two with one rank the leftmost in the text goes first
};

/// Tables of one vocabulary; const and shared by threads.
class BpeTable {
 public:
  /// `tokens` by rank (= id), as read_rank_file() checks them: two tokens whose bytes together are a token
  /// merge.
  explicit BpeTable(std::vector<std::string> tokens);
  /// `tokens` by id, "" where there is none, each at most once; what merges. Of a pair that comes twice the
  /// last one counts.
  BpeTable(std::vector<std::string> tokens, const std::vector<BpeMerge>& merges);

  const std::string& token(int32_t id) const { return tokens_[id]; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  /// Id of the token that is this byte alone, or -1; with ranks every byte has one.
  int32_t byte_id(unsigned char b) const { return byte_ids_[b]; }
  /// Id of a whole piece, or -1.
  int32_t find(std::string_view bytes) const;
  struct Merged {
    int32_t rank = -1, id = -1;
  };
  /// What the two tokens become; rank -1: they do not merge.
  Merged merged(int32_t left, int32_t right) const;

 private:
  void index_tokens();

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views of tokens_
  FlatMap<Merged> merges_;                             // of a pair
  int32_t byte_ids_[256];
};

/// Merges the ids from symbols[first] on. Time n log n, memory about 30 bytes an id where there are many.
void bpe_merge(const BpeTable& table, std::vector<int32_t>& symbols, size_t first);

/// The same by going through the ranks of all pairs at each merge: quadratic, faster for few ids. For any
/// number of them both give the same.
void bpe_merge_short(const BpeTable& table, std::vector<int32_t>& symbols, size_t first);
void bpe_merge_long(const BpeTable& table, std::vector<int32_t>& symbols, size_t first);

/// Appends the ids of `piece`, merged from single bytes, each of which must be a token.
void bpe_merge(const BpeTable& table, std::string_view piece, std::vector<int32_t>& out);

}  // namespace ltrain::data
