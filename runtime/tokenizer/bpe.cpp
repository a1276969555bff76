#include "runtime/tokenizer/bpe.h"

#include <algorithm>
#include <queue>

#include "base/error.h"

namespace ltrain::data {
namespace {

constexpr size_t kFew = 64;  // symbols
constexpr int32_t kNone = INT32_MAX;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeTable::BpeTable(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  index_tokens();
  for (int b = 0; b < 256; ++b) LT_CHECK(byte_ids_[b] >= 0, "expected a token for byte {}, got none", b);
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view bytes = tokens_[id];
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = find(bytes.substr(0, cut)), right = find(bytes.substr(cut));
      if (left >= 0 && right >= 0) merges_[pair_key(left, right)] = {id, id};
    }
  }
}

BpeTable::BpeTable(std::vector<std::string> tokens, const std::vector<BpeMerge>& merges)
    : tokens_(std::move(tokens)) {
  index_tokens();
  for (const BpeMerge& m : merges) merges_[pair_key(m.left, m.right)] = {m.rank, m.id};
}

void BpeTable::index_tokens() {
  ids_.reserve(tokens_.size());
  for (int32_t id = 0; id < size(); ++id)
    if (!tokens_[id].empty()) ids_.emplace(tokens_[id], id);
  for (int b = 0; b < 256; ++b) byte_ids_[b] = find(std::string(1, static_cast<char>(b)));
}

int32_t BpeTable::find(std::string_view bytes) const {
  const auto it = ids_.find(bytes);
  return it == ids_.end() ? -1 : it->second;
}

BpeTable::Merged BpeTable::merged(int32_t left, int32_t right) const {
  const Merged* to = merges_.find(pair_key(left, right));
  return to ? *to : Merged{};
}

void bpe_merge_short(const BpeTable& table, std::vector<int32_t>& symbols, size_t first) {
  size_t n = symbols.size() - first;
  if (n < 2) return;
  int32_t* const id = symbols.data() + first;
  // Merge of each symbol with the next one; rank kNone: no merge.
  BpeTable::Merged few[kFew];
  std::vector<BpeTable::Merged> many(n > kFew ? n : 0);
  BpeTable::Merged* const pair = many.empty() ? few : many.data();
  const auto look_up = [&](size_t i) {
    pair[i] = table.merged(id[i], id[i + 1]);
    if (pair[i].rank < 0) pair[i].rank = kNone;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    size_t at = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (pair[i].rank < pair[at].rank) at = i;
    if (pair[at].rank == kNone) break;
    id[at] = pair[at].id;
    std::copy(id + at + 2, id + n, id + at + 1);
    if (at + 2 < n) std::copy(pair + at + 2, pair + n - 1, pair + at + 1);
    --n;
    if (at + 1 < n) look_up(at);
    if (at > 0) look_up(at - 1);
  }
  symbols.resize(first + n);
}

void bpe_merge_long(const BpeTable& table, std::vector<int32_t>& symbols, size_t first) {
  LT_CHECK(symbols.size() - first < static_cast<size_t>(INT32_MAX),
           "expected fewer than {} symbols in a piece, got {}", INT32_MAX, symbols.size() - first);
  const int32_t n = static_cast<int32_t>(symbols.size() - first);
  if (n == 0) return;
  // A doubly linked list of tokens, each at the index of its first symbol. id -1: merged into the previous
  // one.
  int32_t* const id = symbols.data() + first;
  std::vector<int32_t> next(n), before(n);
  // Candidates by (rank, position). A candidate is skipped if its tokens have changed since. Tokens only
  // grow, so a changed pair never forms the candidate's token again.
  std::vector<uint64_t> storage;
  storage.reserve(n);
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap({}, std::move(storage));
  auto merged_at = [&](int32_t i) {
    return next[i] < n ? table.merged(id[i], id[next[i]]) : BpeTable::Merged{};
  };
  auto push = [&](int32_t i) {
    if (const int32_t r = merged_at(i).rank; r >= 0) heap.push(pair_key(r, i));
  };
  for (int32_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    before[i] = i - 1;
  }
  for (int32_t i = 0; i < n; ++i) push(i);
  while (!heap.empty()) {
    const int32_t rank = static_cast<int32_t>(heap.top() >> 32),
                  i = static_cast<int32_t>(heap.top() & 0xffffffffu);
    heap.pop();
    if (id[i] < 0) continue;
    const BpeTable::Merged m = merged_at(i);
    if (m.rank != rank) continue;
    const int32_t gone = next[i];
    id[i] = m.id;
    id[gone] = -1;
    next[i] = next[gone];
    if (next[i] < n) before[next[i]] = i;
    push(i);
    if (before[i] >= 0) push(before[i]);
  }
  int32_t kept = 0;
  for (int32_t i = 0; i < n; i = next[i]) id[kept++] = id[i];
  symbols.resize(first + static_cast<size_t>(kept));
}

void bpe_merge(const BpeTable& table, std::vector<int32_t>& symbols, size_t first) {
  symbols.size() - first <= kFew ? bpe_merge_short(table, symbols, first)
                                 : bpe_merge_long(table, symbols, first);
}

void bpe_merge(const BpeTable& table, std::string_view piece, std::vector<int32_t>& out) {
  const size_t first = out.size();
  for (char c : piece) out.push_back(table.byte_id(static_cast<unsigned char>(c)));
  bpe_merge(table, out, first);
}

}  // namespace ltrain::data
