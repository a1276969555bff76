#include "runtime/tokenizer/formats/unigram.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {
constexpr float kMostScore = 100000;  // sums restart beyond it, because single precision is coarse there
}

Unigram::Unigram(const SentencepieceModel& model) : scores_(model.pieces.size()), unk_(model.unk) {
  float least = FLT_MAX;
  for (const SentencePiece& p : model.pieces)
    if (p.type == PieceType::normal) least = std::min(least, p.score);
  unk_score_ = least - 10.0f;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& p = model.pieces[id];
    // Higher than any alternative (log probabilities are below 0). One long piece beats two short ones.
    if (p.type == PieceType::user_defined)
      scores_[id] = static_cast<float>(0.1 * static_cast<double>(p.text.size() - 1));
    else if (p.type == PieceType::normal)
      scores_[id] = p.score;
    else
      continue;
    trie_.add(p.text, static_cast<int32_t>(id));
    longest_ = std::max(longest_, p.text.size());
  }
}

void Unigram::segment(std::string_view text, Scratch& scratch, std::vector<Part>& parts) const {
  std::vector<Scratch::Best>& best = scratch.best;
  // best[i] ends at text[begin + i]. No piece spans `begin`, so text before it is final.
  size_t begin = 0, reach = 0;
  best.assign(1, {});
  const auto flush = [&](size_t end) {
    const size_t first = parts.size();
    for (size_t at = end - begin; at > 0; at = static_cast<size_t>(best[at].from))
      parts.push_back({begin + static_cast<size_t>(best[at].from), begin + at, best[at].id});
    std::reverse(parts.begin() + static_cast<int64_t>(first), parts.end());
    best.assign(1, {best[end - begin].score, -1, -1});
    begin = end;
  };
  for (size_t at = 0; at < text.size();) {
    if (at == reach && at > begin) flush(at);
    const size_t here = at - begin;
    if (best.size() < here + longest_ + 1) best.resize(here + longest_ + 1);
    const auto from = static_cast<int32_t>(here);
    if (std::abs(best[here].score) > kMostScore) {
      const float most = best[here].score;
      for (size_t i = here; i <= std::max(reach, at) - begin; ++i)
        if (i == here || best[i].from >= 0) best[i].score -= most;
    }
    const float so_far = best[here].score;
    const size_t character =
        static_cast<size_t>(next_char(text.data() + at, text.data() + text.size()).bytes);
    bool single = false;  // the character is a piece
    int32_t node = trie_.first(static_cast<unsigned char>(text[at]));
    for (size_t n = 1; node >= 0; ++n) {
      if (const int32_t id = trie_.value(node); id >= 0) {
        const float score = scores_[static_cast<size_t>(id)] + so_far;
        if (Scratch::Best& b = best[here + n]; b.from < 0 || score > b.score) b = {score, from, id};
        single |= n == character;
        reach = std::max(reach, at + n);
      }
      if (at + n == text.size()) break;
      node = trie_.next(node, static_cast<unsigned char>(text[at + n]));
    }
    if (!single) {
      const float score = unk_score_ + so_far;
      if (Scratch::Best& b = best[here + character]; b.from < 0 || score > b.score) b = {score, from, unk_};
      reach = std::max(reach, at + character);
    }
    at += character;
  }
  if (!text.empty()) flush(text.size());
}

}  // namespace ltrain::data
