#include "runtime/tokenizer/bpe.h"

#include <queue>

#include "kernels/base/error.h"
#include "kernels/base/mix64.h"

namespace ltrain::data {
namespace {

constexpr size_t kShortPiece = 64;  // bytes
constexpr int32_t kNone = INT32_MAX;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeTable::BpeTable(std::vector<std::string> tokens) : tokens_(std::move(tokens)), merges_(1 << 12) {
  ids_.reserve(tokens_.size());
  for (int32_t id = 0; id < size(); ++id) ids_.emplace(tokens_[id], id);
  for (int b = 0; b < 256; ++b) {
    byte_ids_[b] = find(std::string(1, static_cast<char>(b)));
    LT_CHECK(byte_ids_[b] >= 0, "no token for byte {}", b);
  }
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view bytes = tokens_[id];
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = find(bytes.substr(0, cut)), right = find(bytes.substr(cut));
      if (left >= 0 && right >= 0) insert(pair_key(left, right), id);
    }
  }
}

int32_t BpeTable::find(std::string_view bytes) const {
  const auto it = ids_.find(bytes);
  return it == ids_.end() ? -1 : it->second;
}

int32_t BpeTable::merged(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right), mask = merges_.size() - 1;
  for (uint64_t at = mix64(pair) & mask;; at = (at + 1) & mask) {
    if (merges_[at].pair == pair) return merges_[at].id;
    if (merges_[at].id < 0) return -1;
  }
}

void BpeTable::insert(uint64_t pair, int32_t id) {
  if (2 * ++merge_count_ > static_cast<int64_t>(merges_.size())) {
    std::vector<Slot> old(2 * merges_.size());
    old.swap(merges_);
    merge_count_ = 0;
    for (const Slot& s : old)
      if (s.id >= 0) insert(s.pair, s.id);
    ++merge_count_;
  }
  const uint64_t mask = merges_.size() - 1;
  uint64_t at = mix64(pair) & mask;
  while (merges_[at].id >= 0) at = (at + 1) & mask;
  merges_[at] = {pair, id};
}

void bpe_merge_short(const BpeTable& table, std::string_view piece, std::vector<int32_t>& out) {
  const size_t first = out.size();
  for (char c : piece) out.push_back(table.byte_id(static_cast<unsigned char>(c)));
  for (;;) {
    int32_t best = kNone;
    size_t at = 0;
    for (size_t i = first; i + 1 < out.size(); ++i) {
      const int32_t id = table.merged(out[i], out[i + 1]);
      if (id >= 0 && id < best) {
        best = id;
        at = i;
      }
    }
    if (best == kNone) return;
    out[at] = best;
    out.erase(out.begin() + at + 1);
  }
}

void bpe_merge_long(const BpeTable& table, std::string_view piece, std::vector<int32_t>& out) {
  LT_CHECK(piece.size() < static_cast<size_t>(INT32_MAX), "a piece of {} bytes", piece.size());
  const int32_t n = static_cast<int32_t>(piece.size());
  if (n == 0) return;
  // A doubly linked list of tokens in the place of their first byte; id -1: merged into the one before.
  std::vector<int32_t> id(n), next(n), before(n);
  // Candidates by (rank, place). One whose tokens have changed since is passed over when it comes up.
  std::vector<uint64_t> storage;
  storage.reserve(n);
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap({}, std::move(storage));
  auto rank_at = [&](int32_t i) { return next[i] < n ? table.merged(id[i], id[next[i]]) : -1; };
  auto push = [&](int32_t i) {
    if (const int32_t r = rank_at(i); r >= 0) heap.push(pair_key(r, i));
  };
  for (int32_t i = 0; i < n; ++i) {
    id[i] = table.byte_id(static_cast<unsigned char>(piece[i]));
    next[i] = i + 1;
    before[i] = i - 1;
  }
  for (int32_t i = 0; i < n; ++i) push(i);
  while (!heap.empty()) {
    const int32_t rank = static_cast<int32_t>(heap.top() >> 32),
                  i = static_cast<int32_t>(heap.top() & 0xffffffffu);
    heap.pop();
    if (id[i] < 0 || rank_at(i) != rank) continue;
    const int32_t gone = next[i];
    id[i] = rank;
    id[gone] = -1;
    next[i] = next[gone];
    if (next[i] < n) before[next[i]] = i;
    push(i);
    if (before[i] >= 0) push(before[i]);
  }
  for (int32_t i = 0; i < n; i = next[i]) out.push_back(id[i]);
}

void bpe_merge(const BpeTable& table, std::string_view piece, std::vector<int32_t>& out) {
  piece.size() <= kShortPiece ? bpe_merge_short(table, piece, out) : bpe_merge_long(table, piece, out);
}

}  // namespace ltrain::data
