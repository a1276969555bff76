#include "runtime/tokenizer/formats/pre_tokenizer.h"

#include <algorithm>

#include "runtime/tokenizer/gpt2_split.h"

namespace ltrain::data {

void PreTokenizer::split(std::string& text, bool first, std::vector<Piece>& pieces) {
  pieces.clear();
  if (!text.empty()) pieces.push_back({0, text.size(), first});
  for (Step& step : steps_) {
    next_.clear();
    std::visit([&](auto& s) { apply(s, text, pieces); }, step);
    pieces.swap(next_);
  }
}

/// Puts each match together with the span before it, or with `contiguous` neighbours that both match or both
/// do not.
template <class Spans, class Put>
static void put_with_previous(const Spans& spans, bool contiguous, const Put& put) {
  size_t begin = 0, end = 0;
  bool open = false, before = false;  // before: the last span matched
  for (const auto& s : spans) {
    const bool joins = open && (contiguous ? s.match == before : s.match && !before);
    if (!joins) {
      if (open) put(begin, end);
      begin = s.begin;
    }
    end = s.end;
    open = true;
    before = s.match;
  }
  if (open) put(begin, end);
}

/// Puts each match together with the span behind it, the last one first.
template <class Spans, class Put>
static void put_with_next(const Spans& spans, const Put& put) {
  size_t begin = 0, end = 0;
  bool open = false, before = false;
  for (size_t i = spans.size(); i-- > 0;) {
    const auto& s = spans[i];
    if (!(open && s.match && !before)) {
      if (open) put(begin, end);
      end = s.end;
    }
    begin = s.begin;
    open = true;
    before = s.match;
  }
  if (open) put(begin, end);
}

void PreTokenizer::apply(RegexSplit& step, const std::string& text, std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    const std::string_view view(text.data() + piece.begin, piece.end - piece.begin);
    const auto put = [&](size_t begin, size_t end) {
      if (begin < end) next_.push_back({piece.begin + begin, piece.begin + end, piece.first && begin == 0});
    };
    // Matches and the text between them cover the piece.
    spans_.clear();
    size_t done = 0, from = 0;
    Regex::Match m;
    while (from <= view.size() && step.pattern.next(view, from, m)) {
      if (done < m.begin) spans_.push_back({done, m.begin, step.invert});
      spans_.push_back({m.begin, m.end, !step.invert});
      done = m.end;
      from = m.end;
      if (m.begin == m.end)  // empty match: advance by a character
        for (++from; from < view.size() && (static_cast<unsigned char>(view[from]) & 0xC0) == 0x80;) ++from;
    }
    if (done < view.size()) spans_.push_back({done, view.size(), step.invert});

    const size_t kept = next_.size();
    switch (step.behavior) {
      case SplitBehavior::isolated:
        for (const Span& s : spans_) put(s.begin, s.end);
        break;
      case SplitBehavior::removed:
        for (const Span& s : spans_)
          if (!s.match) put(s.begin, s.end);
        break;
      case SplitBehavior::merged_with_previous:
      case SplitBehavior::contiguous:
        put_with_previous(spans_, step.behavior == SplitBehavior::contiguous, put);
        break;
      case SplitBehavior::merged_with_next:
        put_with_next(spans_, put);
        std::reverse(next_.begin() + static_cast<int64_t>(kept), next_.end());
        break;
    }
  }
}

void PreTokenizer::apply(Gpt2Split&, const std::string& text, std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces)
    for (size_t at = piece.begin; at < piece.end;) {
      const size_t end =
          at + static_cast<size_t>(gpt2_piece(std::string_view(text.data() + at, piece.end - at)));
      next_.push_back({at, end, piece.first && at == piece.begin});
      at = end;
    }
}

void PreTokenizer::apply(MetaspaceSplit& step, std::string& text, std::vector<Piece>& pieces) {
  changed_.clear();
  for (const Piece& piece : pieces) {
    const std::string_view view(text.data() + piece.begin, piece.end - piece.begin);
    const size_t begin = changed_.size();
    const bool has = view.starts_with(' ') || view.starts_with(step.replacement);
    if (!has &&
        (step.prepend == PrependScheme::always || (step.prepend == PrependScheme::first && piece.first)))
      changed_ += step.replacement;
    for (const char c : view) {
      if (c == ' ')
        changed_ += step.replacement;
      else
        changed_ += c;
    }
    size_t from = begin;
    const auto put = [&](size_t end) {
      if (from < end) next_.push_back({from, end, piece.first && from == begin});
      from = end;
    };
    // Each replacement begins a piece, so a run of n replacements gives n pieces.
    if (step.split)
      for (size_t at = begin; (at = changed_.find(step.replacement, at)) != std::string::npos;
           at += step.replacement.size())
        put(at);
    put(changed_.size());
  }
  text.swap(changed_);
}

void PreTokenizer::apply(PrefixSpace&, std::string& text, std::vector<Piece>& pieces) {
  changed_.clear();
  for (const Piece& piece : pieces) {
    const size_t begin = changed_.size();
    if (text[piece.begin] != ' ') changed_ += ' ';
    changed_.append(text, piece.begin, piece.end - piece.begin);
    next_.push_back({begin, changed_.size(), piece.first});
  }
  text.swap(changed_);
}

bool PreTokenizer::by_words() const {
  // Metaspace and a prefix add nothing to a part that begins with a space.
  bool splits = false;
  for (const Step& step : steps_) {
    if (const auto* r = std::get_if<RegexSplit>(&step)) {
      if (!r->local) return false;
      splits = splits || r->by_words;
    } else if (const auto* m = std::get_if<MetaspaceSplit>(&step)) {
      splits = splits || m->split;
    } else {
      splits = splits || std::holds_alternative<Gpt2Split>(step);
    }
  }
  return splits;
}

}  // namespace ltrain::data
