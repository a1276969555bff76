#include "runtime/tokenizer/formats/huggingface_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/tokenizer/formats/metaspace_words.h"
#include "runtime/tokenizer/gpt2_split.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {

/// Returns whether the text has a space after its first byte.
bool has_inner_space(std::string_view text) {
  return text.size() > 1 && text.find(' ', 1) != std::string_view::npos;
}

}  // namespace

HuggingfaceTokenizer::HuggingfaceTokenizer(std::shared_ptr<const HuggingfaceTables> tables)
    : tables_(std::move(tables)), normalizer_(tables_->normalizer), pre_tokenizer_(tables_->pre_tokenizer) {
  by_words_ = normalizer_.by_words() && pre_tokenizer_.by_words();
  specials_.resize(tables_->contents.size());
  for (const AddedToken& token : tables_->added)
    if (token.special) specials_[static_cast<size_t>(token.id)] = true;
  for (const bool special :
       {true, false})  // if two tokens are equal after normalization, the special one counts
    for (const AddedToken& token : tables_->added) {
      if (token.special != special || (special && !tables_->specials_in_text)) continue;
      std::string content = token.content;
      if (token.normalized) normalizer_.apply(content);
      (token.normalized ? normalized_ : raw_).add(token, content);
      if (token.rstrip || has_inner_space(content) || has_inner_space(token.content)) by_words_ = false;
    }
}

std::unique_ptr<Tokenizer> HuggingfaceTokenizer::clone() const {
  auto copy = std::make_unique<HuggingfaceTokenizer>(tables_);
  copy->set_split_special_tokens(split_special_tokens_);
  return copy;
}

void HuggingfaceTokenizer::set_split_special_tokens(bool split) {
  split_special_tokens_ = split;
  raw_.set_split_special_tokens(split);
  normalized_.set_split_special_tokens(split);
}

int32_t HuggingfaceTokenizer::find(std::string_view token) const {
  const auto it = std::find(tables_->contents.begin(), tables_->contents.end(), token);
  return token.empty() || it == tables_->contents.end()
             ? -1
             : static_cast<int32_t>(it - tables_->contents.begin());
}

int64_t HuggingfaceTokenizer::safe_cut(std::string_view text) const { return by_words_ ? word_cut(text) : 0; }

void HuggingfaceTokenizer::encode(std::string_view text, std::vector<int32_t>& out) {
  if (raw_.empty()) return encode_part(text, true, out);
  raw_.split(text, raw_parts_);
  for (const auto& part : raw_parts_) {
    if (part.id >= 0)
      out.push_back(part.id);
    else
      encode_part(text.substr(part.begin, part.end - part.begin), part.begin == 0, out);
  }
}

bool HuggingfaceTokenizer::encode_marked(std::string_view text, const AddedTokenSearch::Allowed& allowed,
                                         std::vector<int32_t>& ids, std::vector<EncodedPart>& parts) {
  if (!marked_) {
    marked_ = std::make_unique<AddedTokenSearch>();
    for (const bool special : {true, false})
      for (const AddedToken& token : tables_->added)
        if (token.special == special && !token.normalized) marked_->add(token, token.content);
  }
  // In normalized text bytes have other positions, so special tokens there must not occur in text from
  // outside.
  for (const AddedToken& token : tables_->added)
    if (token.special && token.normalized)
      for (size_t at = 0; (at = text.find(token.content, at)) != std::string_view::npos; ++at)
        if (!allowed(at, at + token.content.size()))
          fail(ExitCode::data,
               "the text has the special token \"{}\", which this tokenizer finds in normalized text only",
               token.content);
  marked_->split(text, raw_parts_, allowed);
  const bool split = split_special_tokens_;
  set_split_special_tokens(false);
  for (const auto& part : raw_parts_) {
    const size_t from = ids.size();
    if (part.id >= 0)
      ids.push_back(part.id);
    else
      encode_part(text.substr(part.begin, part.end - part.begin), part.begin == 0, ids);
    parts.push_back({part.begin, part.end, from, ids.size(), part.special});
  }
  set_split_special_tokens(split);
  return true;
}

void HuggingfaceTokenizer::encode_part(std::string_view part, bool first, std::vector<int32_t>& out) {
  work_.assign(part);
  normalizer_.apply(work_);
  if (normalized_.empty()) return encode_text(work_, first, out);
  normalized_.split(work_, parts_);
  for (const auto& p : parts_) {
    if (p.id >= 0) {
      out.push_back(p.id);
    } else {
      segment_.assign(work_, p.begin, p.end - p.begin);
      encode_text(segment_, first && p.begin == 0, out);
    }
  }
}

void HuggingfaceTokenizer::encode_text(std::string& text, bool first, std::vector<int32_t>& out) {
  pre_tokenizer_.split(text, first, pieces_);
  const auto encode_cached = [&](std::string_view part) {
    cache_.encode(part, out,
                  [this](std::string_view piece, std::vector<int32_t>& to) { encode_piece(piece, to); });
  };
  for (const PreTokenizer::Piece& p : pieces_) {
    const std::string_view piece = std::string_view(text).substr(p.begin, p.end - p.begin);
    if (tables_->cuts)
      tables_->cuts->each_part(piece, encode_cached);
    else if (tables_->metaspace_words)
      each_metaspace_word(piece, encode_cached);
    else
      encode_cached(piece);
  }
}

void HuggingfaceTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& out) const {
  const HuggingfaceTables& t = *tables_;
  if (t.ignore_merges)
    if (const int32_t whole = t.table.find(piece); whole >= 0) {
      out.push_back(whole);
      return;
    }
  const size_t first = out.size();
  const char *p = piece.data(), *const end = p + piece.size();
  bool unknown = false;  // an unknown token must be appended
  while (p < end) {
    const int bytes = t.byte_level ? 1 : next_char(p, end).bytes;
    const std::string_view symbol(p, static_cast<size_t>(bytes));
    p += bytes;
    const int32_t id =
        bytes == 1 ? t.table.byte_id(static_cast<unsigned char>(symbol[0])) : t.table.find(symbol);
    if (id >= 0) {
      if (unknown) out.push_back(t.unk);
      unknown = false;
      out.push_back(id);
      continue;
    }
    const auto byte_token = [&](char c) { return t.byte_tokens[static_cast<unsigned char>(c)]; };
    if (t.byte_fallback &&
        std::all_of(symbol.begin(), symbol.end(), [&](char c) { return byte_token(c) >= 0; })) {
      for (const char c : symbol) out.push_back(byte_token(c));
      continue;
    }
    if (t.unk < 0) continue;
    if (unknown && !t.fuse_unk) out.push_back(t.unk);
    unknown = true;
  }
  if (unknown) out.push_back(t.unk);
  bpe_merge(t.table, out, first);
}

void HuggingfaceTokenizer::decode(const int32_t* ids, int64_t count, std::string& out, bool begin) const {
  const HuggingfaceTables& t = *tables_;
  const size_t from = out.size();
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size() || t.contents[ids[i]].empty())
      fail(ExitCode::data, "token {} at position {}: this tokenizer has no such id (0 to {})", ids[i], i,
           vocab_size() - 1);
    const bool first = begin && i == 0;
    if (t.joined_by_spaces && !first) out += ' ';
    const std::string* text = &t.shown[ids[i]];
    if (first)
      for (const auto& [id, bytes] : t.shown_first)
        if (id == ids[i]) text = &bytes;
    out += *text;
  }
  if (begin && t.strip_first_space && out.size() > from && out[from] == ' ') out.erase(from, 1);
}

int64_t HuggingfaceTokenizer::text_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return 0;
  const std::vector<int32_t>& bytes = tables_->byte_tokens;  // some files mark byte tokens as special
  if (std::find(bytes.begin(), bytes.end(), id) != bytes.end()) return 1;
  for (const AddedToken& t : tables_->added)
    if (t.id == id && t.special) return 0;
  return static_cast<int64_t>(tables_->shown[id].size());
}

void HuggingfaceTokenizer::add_special_tokens(std::vector<int32_t>& ids) const {
  ids.insert(ids.begin(), tables_->before.begin(), tables_->before.end());
  ids.insert(ids.end(), tables_->after.begin(), tables_->after.end());
}

}  // namespace ltrain::data
