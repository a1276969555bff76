#include "runtime/tokenizer/formats/added_tokens.h"

#include <algorithm>

#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {

/// Start of the character that ends before text[at].
size_t before(std::string_view text, size_t at) {
  size_t p = at - 1;
  while (p > 0 && at - p < 4 && (static_cast<unsigned char>(text[p]) & 0xC0) == 0x80) --p;
  const Char c = next_char(text.data() + p, text.data() + at);
  return p + static_cast<size_t>(c.bytes) == at ? p : at - 1;
}

bool is_space(std::string_view text, size_t at, size_t end, size_t& bytes) {
  const Char c = next_char(text.data() + at, text.data() + end);
  bytes = static_cast<size_t>(c.bytes);
  return c.valid && char_classes()[c.code] == kS;
}

}  // namespace

// \x{200c} and \x{200d} join words and count as word characters next to added tokens.
AddedTokenSearch::AddedTokenSearch() : word_("[\\w\\x{200c}\\x{200d}]", "added tokens") {
  std::fill(std::begin(first_), std::end(first_), -1);
}

void AddedTokenSearch::add(const AddedToken& token, const std::string& content) {
  if (content.empty()) return;
  const auto new_node = [&] {
    nodes_.emplace_back();
    return static_cast<int32_t>(nodes_.size()) - 1;
  };
  int32_t& root = first_[static_cast<unsigned char>(content[0])];
  if (root < 0) root = new_node();
  int32_t at = root;
  for (size_t i = 1; i < content.size(); ++i) {
    const auto byte = static_cast<unsigned char>(content[i]);
    const auto& next = nodes_[at].next;
    const auto it = std::find_if(next.begin(), next.end(), [&](const auto& n) { return n.first == byte; });
    if (it != next.end()) {
      at = it->second;
    } else {
      const int32_t made = new_node();
      nodes_[at].next.emplace_back(byte, made);
      at = made;
    }
  }
  if (nodes_[at].token < 0) nodes_[at].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

int32_t AddedTokenSearch::longest(std::string_view text, size_t at, size_t& end) const {
  int32_t node = first_[static_cast<unsigned char>(text[at])], found = -1;
  for (size_t i = at; node >= 0;) {
    ++i;
    if (nodes_[node].token >= 0) {
      found = nodes_[node].token;
      end = i;
    }
    if (i == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto& next = nodes_[node].next;
    const auto it = std::find_if(next.begin(), next.end(), [&](const auto& n) { return n.first == byte; });
    node = it == next.end() ? -1 : it->second;
  }
  return found;
}

bool AddedTokenSearch::word_before(std::string_view text, size_t at) {
  if (at == 0) return false;
  Regex::Match m;
  const size_t from = before(text, at);
  return word_.next(text.substr(from, at - from), 0, m);
}

bool AddedTokenSearch::word_after(std::string_view text, size_t at) {
  if (at == text.size()) return false;
  Regex::Match m;
  const Char c = next_char(text.data() + at, text.data() + text.size());
  return word_.next(text.substr(at, static_cast<size_t>(c.bytes)), 0, m);
}

void AddedTokenSearch::split(std::string_view text, std::vector<Part>& parts, const Allowed& allowed) {
  parts.clear();
  size_t done = 0, end = 0, bytes = 0;
  for (size_t at = 0; at < text.size();) {
    const int32_t found = longest(text, at, end);
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found];
    size_t begin = at;
    at = end;  // the search continues here even if the match includes more text
    if (token.special && (split_special_tokens_ || (allowed && !allowed(begin, end)))) continue;
    if (token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    if (token.lstrip)
      while (begin > done) {
        const size_t p = before(text, begin);
        if (!is_space(text, p, begin, bytes) || p < done) break;
        begin = p;
      }
    if (token.rstrip)
      while (end < text.size() && is_space(text, end, text.size(), bytes)) end += bytes;
    if (done < begin) parts.push_back({done, begin, -1, false});
    parts.push_back({begin, end, token.id, token.special});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1, false});
}

}  // namespace ltrain::data
