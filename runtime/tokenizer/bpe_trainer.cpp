#include "runtime/tokenizer/bpe_trainer.h"

#include <xxhash.h>

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "runtime/tokenizer/byte_level_json.h"
#include "runtime/tokenizer/flat_map.h"

namespace ltrain::data {

void PieceCounts::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& s : old) {
    if (s.count == 0) continue;
    size_t at = s.hash & mask;
    while (slots_[at].count > 0) at = (at + 1) & mask;
    slots_[at] = s;
  }
}

void PieceCounts::add(std::string_view piece, int64_t count) {
  LT_CHECK(piece.size() <= UINT32_MAX, "expected at most {} bytes in a piece, got {}", UINT32_MAX,
           piece.size());
  const auto hash = static_cast<uint32_t>(XXH3_64bits(piece.data(), piece.size()));
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  for (; slots_[at].count > 0; at = (at + 1) & mask) {
    Slot& s = slots_[at];
    if (s.hash != hash || this->piece(s) != piece) continue;
    s.count += count;
    return;
  }
  slots_[at] = {text_.size(), static_cast<uint32_t>(piece.size()), hash, count};
  text_ += piece;
  if (2 * ++size_ > slots_.size()) grow();
}

void PieceCounts::add(const PieceCounts& others) {
  others.each([this](std::string_view piece, int64_t count) { add(piece, count); });
}

int64_t PieceCounts::keep(size_t most) {
  const size_t before = size_;
  for (int64_t least = 2; bytes() > most && size_ > 0; least *= 2) {
    PieceCounts kept;
    each([&](std::string_view piece, int64_t count) {
      if (count >= least) kept.add(piece, count);
    });
    *this = std::move(kept);
  }
  return static_cast<int64_t>(before - size_);
}

namespace {

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}
int32_t left_of(uint64_t key) { return static_cast<int32_t>(key >> 32); }
int32_t right_of(uint64_t key) { return static_cast<int32_t>(key & 0xffffffffu); }

/// A pair, its count when it was queued, and the words that may contain it.
struct Candidate {
  int64_t count;
  uint64_t pair;
  std::vector<uint32_t> words;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Training {
 public:
  Training(const PieceCounts& pieces, const std::vector<std::string>& special_tokens) {
    for (const std::string& token : special_tokens) id_of(token);
    std::vector<int32_t> byte_ids(256), order(256);
    for (int b = 0; b < 256; ++b) order[static_cast<size_t>(b)] = b;
    std::sort(order.begin(), order.end(),
              [](int32_t a, int32_t b) { return byte_level_alphabet()[a] < byte_level_alphabet()[b]; });
    for (const int32_t b : order)
      byte_ids[static_cast<size_t>(b)] = id_of(byte_level_text(std::string(1, static_cast<char>(b))));
    symbols_.reserve(pieces.text_bytes());
    words_.reserve(pieces.size());
    pieces.each([&](std::string_view piece, int64_t count) {
      if (piece.size() < 2) return;
      LT_CHECK(words_.size() < UINT32_MAX, "expected fewer than {} pieces, got {}", UINT32_MAX,
               words_.size());
      words_.push_back({symbols_.size(), static_cast<uint32_t>(piece.size()), count});
      for (const char c : piece) symbols_.push_back(byte_ids[static_cast<unsigned char>(c)]);
    });
    for (uint32_t w = 0; w < words_.size(); ++w) {
      const Word& word = words_[w];
      for (uint32_t i = 0; i + 1 < word.length; ++i)
        change(key_of(symbols_[word.begin + i], symbols_[word.begin + i + 1]), 1, w);
    }
    queue_changed();
  }

  BpeTraining run(int64_t vocab_size, int64_t min_frequency, const std::function<void(int64_t)>& progress) {
    while (static_cast<int64_t>(result_.tokens.size()) < vocab_size && !heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      Candidate best = std::move(heap_.back());
      heap_.pop_back();
      if (const int64_t now = counts_[best.pair]; best.count != now) {
        best.count = now;
        push(std::move(best));
        continue;
      }
      if (best.count < 1 || best.count < min_frequency) break;
      const int32_t left = left_of(best.pair), right = right_of(best.pair);
      const int32_t id =
          id_of(result_.tokens[static_cast<size_t>(left)] + result_.tokens[static_cast<size_t>(right)]);
      result_.merges.emplace_back(left, right);
      for (const uint32_t w : best.words) merge(w, left, right, id);
      queue_changed();
      if (progress && result_.merges.size() % 64 == 0) progress(static_cast<int64_t>(result_.tokens.size()));
    }
    drop_repeated();
    return std::move(result_);
  }

 private:
  struct Word {
    uint64_t begin;  // first index in symbols_
    uint32_t length;
    int64_t count;
  };

  /// Id of a token. Two merges with the same text give one token.
  int32_t id_of(const std::string& token) {
    const auto [it, fresh] = ids_.emplace(token, static_cast<int32_t>(result_.tokens.size()));
    if (fresh) result_.tokens.push_back(token);
    return it->second;
  }

  void change(uint64_t pair, int by, uint32_t w) {
    counts_[pair] += by * words_[w].count;
    if (by < 0) return;
    int32_t& at = changed_at_[pair];  // 0: not changed in this round
    if (at == 0 || at > static_cast<int32_t>(changed_.size()) ||
        changed_[static_cast<size_t>(at) - 1].pair != pair) {
      changed_.push_back({0, pair, {}});
      at = static_cast<int32_t>(changed_.size());
    }
    std::vector<uint32_t>& words = changed_[static_cast<size_t>(at) - 1].words;
    if (words.empty() || words.back() != w) words.push_back(w);
  }

  void push(Candidate candidate) {
    heap_.push_back(std::move(candidate));
    std::push_heap(heap_.begin(), heap_.end());
  }

  void queue_changed() {
    for (Candidate& c : changed_) {
      c.count = counts_[c.pair];
      if (c.count > 0) push(std::move(c));
    }
    changed_.clear();
  }

  /// Merges the pair in one word, from left to right. Counts of the pair itself are not updated, because it
  /// does not occur again.
  void merge(uint32_t w, int32_t left, int32_t right, int32_t id) {
    Word& word = words_[w];
    int32_t* const s = symbols_.data() + word.begin;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < word.length;) {
      if (i + 1 == word.length || s[i] != left || s[i + 1] != right) {
        s[kept++] = s[i++];
        continue;
      }
      if (kept > 0) {
        change(key_of(s[kept - 1], left), -1, w);
        change(key_of(s[kept - 1], id), 1, w);
      }
      i += 2;
      if (i < word.length) {
        change(key_of(right, s[i]), -1, w);
        change(key_of(id, s[i]), 1, w);
      }
      s[kept++] = id;
    }
    word.length = kept;
  }

  /// Removes repeated merges. The last rank of a pair counts.
  void drop_repeated() {
    FlatMap<size_t> last;
    auto& merges = result_.merges;
    for (size_t i = 0; i < merges.size(); ++i) last[key_of(merges[i].first, merges[i].second)] = i;
    size_t kept = 0;
    for (size_t i = 0; i < merges.size(); ++i)
      if (*last.find(key_of(merges[i].first, merges[i].second)) == i) merges[kept++] = merges[i];
    merges.resize(kept);
  }

  BpeTraining result_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Word> words_;
  std::vector<int32_t> symbols_;
  FlatMap<int64_t> counts_;         // counts of pairs
  std::vector<Candidate> heap_;     // a heap
  std::vector<Candidate> changed_;  // pairs that appeared in this round
  FlatMap<int32_t> changed_at_;     // index in changed_, plus one
};

}  // namespace

BpeTraining train_bpe(const PieceCounts& pieces, const std::vector<std::string>& special_tokens,
                      int64_t vocab_size, int64_t min_frequency,
                      const std::function<void(int64_t)>& progress) {
  return Training(pieces, special_tokens).run(vocab_size, min_frequency, progress);
}

}  // namespace ltrain::data
