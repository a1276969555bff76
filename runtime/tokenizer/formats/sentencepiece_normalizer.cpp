#include "runtime/tokenizer/formats/sentencepiece_normalizer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "runtime/tokenizer/formats/metaspace_words.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// A unit of the array has a label in its low byte (bit 31 set: a value), a value in its low 31 bits, and an
// offset from bit 10 on, times 256 if bit 9 is set. Bit 8: a value is among the edges.
bool has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t label(uint32_t unit) { return unit & 0x800000ffu; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

}  // namespace

CharsMap::CharsMap(std::string_view file, const std::string& name) {
  const auto refuse = [&](const char* why) {
    fail(ExitCode::data, "{}: normalizer_spec.precompiled_charsmap: {}", name, why);
  };
  uint32_t bytes = 0;
  if (file.size() < 4) refuse("ends before its size");
  std::memcpy(&bytes, file.data(), 4);
  file.remove_prefix(4);
  if (bytes == 0 || bytes % 4 != 0 || bytes >= file.size()) refuse("its array does not fit into it");
  units_.resize(bytes / 4);
  std::memcpy(units_.data(), file.data(), bytes);
  strings_ = file.substr(bytes);
  if (strings_.back() != '\0') refuse("its last string has no end");
  find_plain();
  find_inner_space();
}

uint32_t CharsMap::edges(uint32_t node) const {
  const uint32_t to = node ^ offset(units_[node]);
  return to < units_.size() ? to : kNone;
}

uint32_t CharsMap::step(uint32_t edges, unsigned char byte) const {
  const uint32_t to = edges ^ byte;
  return byte != 0 && to < units_.size() && label(units_[to]) == byte ? to : kNone;
}

CharsMap::Match CharsMap::longest(std::string_view text) const {
  Match match;
  uint32_t at = edges(kRoot);
  for (size_t i = 0; i < text.size() && at != kNone; ++i) {
    const uint32_t node = step(at, static_cast<unsigned char>(text[i]));
    if (node == kNone) break;
    at = edges(node);
    if (at == kNone || !has_value(units_[node])) continue;
    const uint32_t value = units_[at] & 0x7fffffffu;
    if (value < strings_.size()) match = {i + 1, strings_.c_str() + value};
  }
  return match;
}

void CharsMap::find_plain() {
  for (int c = 0; c < 128; ++c)
    for (int next = 0; next < 128; ++next) {
      const char both[2] = {static_cast<char>(c), static_cast<char>(next)};
      const uint32_t root = edges(kRoot),
                     one = root == kNone ? kNone : step(root, static_cast<unsigned char>(c)),
                     after = one == kNone ? kNone : edges(one);
      const bool goes_on = after != kNone && step(after, static_cast<unsigned char>(next)) != kNone;
      plain_[static_cast<size_t>(c) << 7 | static_cast<size_t>(next)] =
          longest({both, 2}).bytes == 0 && !goes_on;
    }
}

void CharsMap::find_inner_space() {
  // Each node is visited once, because a hostile array may have cycles.
  std::vector<bool> seen(units_.size());
  std::vector<uint32_t> open = {kRoot};
  seen[kRoot] = true;
  while (!open.empty()) {
    const uint32_t node = open.back(), at = edges(node);
    open.pop_back();
    if (at == kNone) continue;
    for (int byte = 1; byte < 256; ++byte) {
      const uint32_t to = step(at, static_cast<unsigned char>(byte));
      if (to == kNone) continue;
      if (byte == ' ' && node != kRoot) has_inner_space_ = true;
      if (seen[to]) continue;
      seen[to] = true;
      open.push_back(to);
    }
  }
}

SentencepieceNormalizer::SentencepieceNormalizer(const SentencepieceModel& m, const std::string& name)
    : mapped_(!m.charsmap.empty()),
      dummy_prefix_(m.add_dummy_prefix),
      remove_spaces_(m.remove_extra_whitespaces),
      space_(m.escape_whitespaces ? kMetaspace : " ") {
  if (mapped_) map_ = CharsMap(m.charsmap, name);
  for (size_t id = 0; id < m.pieces.size(); ++id) {
    const SentencePiece& p = m.pieces[id];
    if (p.type != PieceType::user_defined) continue;
    user_defined_.add(p.text, static_cast<int32_t>(id));
    if (p.text.find(' ') != std::string::npos) user_space_ = true;
  }
}

bool SentencepieceNormalizer::by_words() const {
  // A part that begins with a space gets a prefix exactly if its own space is removed.
  return dummy_prefix_ == remove_spaces_ && !user_space_ && !(mapped_ && map_.has_inner_space());
}

SentencepieceNormalizer::Prefix SentencepieceNormalizer::prefix(std::string_view text) const {
  if (!user_defined_.empty()) {
    int32_t piece = -1;
    if (const size_t n = user_defined_.longest(text, piece)) return {n, text.substr(0, n)};
  }
  if (mapped_)
    if (const CharsMap::Match m = map_.longest(text); m.bytes) return {m.bytes, m.becomes};
  const Char c = next_char(text.data(), text.data() + text.size());
  if (!c.valid) return {1, kReplacement};
  return {static_cast<size_t>(c.bytes), text.substr(0, static_cast<size_t>(c.bytes))};
}

void SentencepieceNormalizer::apply(std::string_view text, std::string& out) const {
  const size_t given = text.size(), most = std::min<size_t>(64 * given + (64 << 10), INT32_MAX);
  out.clear();
  if (remove_spaces_)
    while (!text.empty()) {
      const Prefix p = prefix(text);
      if (p.becomes != " ") break;
      text.remove_prefix(p.bytes);
    }
  if (text.empty()) return;
  if (dummy_prefix_) out += space_;
  bool after_space = remove_spaces_;
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text[0]);
    const bool plain = c != ' ' && c < 0x80 && user_defined_.empty() &&
                       (!mapped_ || (text.size() > 1 && static_cast<unsigned char>(text[1]) < 0x80 &&
                                     map_.plain(c, static_cast<unsigned char>(text[1]))));
    if (plain) {
      out += text[0];
      text.remove_prefix(1);
      after_space = false;
      continue;
    }
    Prefix p = prefix(text);
    text.remove_prefix(p.bytes);
    if (after_space) p.becomes.remove_prefix(std::min(p.becomes.find_first_not_of(' '), p.becomes.size()));
    if (p.becomes.empty()) continue;
    for (const char b : p.becomes) {
      if (b == ' ')
        out += space_;
      else
        out += b;
    }
    if (out.size() > most)
      fail(ExitCode::data, "the normalizer makes more than {} bytes of a text of {}", most, given);
    after_space = remove_spaces_ && p.becomes.back() == ' ';
  }
  if (remove_spaces_)
    while (out.ends_with(space_)) out.resize(out.size() - space_.size());
}

}  // namespace ltrain::data
