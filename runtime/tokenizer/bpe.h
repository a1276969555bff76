// Byte-pair merges by rank: again and again the adjacent pair whose joint token has the lowest rank becomes
// that token, the leftmost of equals first, until no pair is a token.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ltrain::data {

/// Tables of one vocabulary; const and shared by threads.
class BpeTable {
 public:
  /// `tokens` by rank (= id), as read_rank_file() checks them.
  explicit BpeTable(std::vector<std::string> tokens);

  const std::string& token(int32_t id) const { return tokens_[id]; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t byte_id(unsigned char b) const { return byte_ids_[b]; }
  /// Id of a whole piece, or -1.
  int32_t find(std::string_view bytes) const;
  /// Id of the two tokens' bytes together, or -1.
  int32_t merged(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    int32_t id = -1;
  };
  void insert(uint64_t pair, int32_t id);

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views of tokens_
  std::vector<Slot> merges_;                           // open addressing, a power of two
  int64_t merge_count_ = 0;
  int32_t byte_ids_[256];
};

/// Appends the ids of `piece`, merged from single bytes. Time n log n, memory about 30 bytes a byte for long
/// pieces.
void bpe_merge(const BpeTable& table, std::string_view piece, std::vector<int32_t>& out);

/// The same by looking through all pairs at each merge: quadratic, faster for short pieces. For pieces of any
/// length both give the same ids.
void bpe_merge_short(const BpeTable& table, std::string_view piece, std::vector<int32_t>& out);
void bpe_merge_long(const BpeTable& table, std::string_view piece, std::vector<int32_t>& out);

}  // namespace ltrain::data
