#include "runtime/chat/text_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::chat {
namespace {

using data::EncodedPart;
using data::Tokenizer;

/// Parts of a text for a tokenizer that finds no special tokens: those of `named`, and the text between.
std::vector<EncodedPart> encode_parts(Tokenizer& tokenizer, std::string_view text,
                                      const std::function<bool(size_t, size_t)>& allowed,
                                      const std::vector<std::string>& named, std::vector<int32_t>& ids) {
  std::vector<std::pair<std::string, int32_t>> specials;
  for (const std::string& name : named)
    if (const int32_t id =
            name == data::kEndOfText && tokenizer.eot() >= 0 ? tokenizer.eot() : tokenizer.find(name);
        id >= 0 && !name.empty())
      specials.emplace_back(name, id);
  std::vector<EncodedPart> parts;
  size_t done = 0;
  const auto put_text = [&](size_t end) {
    if (done == end) return;
    const size_t from = ids.size();
    tokenizer.encode(text.substr(done, end - done), ids);
    parts.push_back({done, end, from, ids.size(), false});
  };
  for (size_t at = 0; at < text.size();) {
    const std::pair<std::string, int32_t>* longest = nullptr;
    for (const auto& special : specials)
      if (text.substr(at).starts_with(special.first) && allowed(at, at + special.first.size()) &&
          (!longest || special.first.size() > longest->first.size()))
        longest = &special;
    if (!longest) {
      ++at;
      continue;
    }
    put_text(at);
    ids.push_back(longest->second);
    parts.push_back({at, at + longest->first.size(), ids.size() - 1, ids.size(), true});
    done = at += longest->first.size();
  }
  put_text(text.size());
  return parts;
}

/// Finds the bytes of the tokens of one part.
class PartEnds {
 public:
  PartEnds(Tokenizer& tokenizer, std::string_view text, const EncodedPart& part,
           const std::vector<int32_t>& ids)
      : tokenizer_(tokenizer),
        text_(text.substr(part.begin, part.end - part.begin)),
        part_(part),
        ids_(ids.data() + part.ids_begin),
        count_(part.ids_end - part.ids_begin) {}

  /// Ends of the tokens, if they decode to the text.
  bool exact(std::vector<size_t>& ends) const {
    for (const bool begin : {false, true}) {
      const std::string decoded = decode(ids_, count_, begin, &ends);
      if (decoded == text_) {
        for (size_t& end : ends) end += part_.begin;
        return true;
      }
    }
    return false;
  }

  /// Ends where the text was changed by normalization: the tokens of the text up to each bound decode to a
  /// beginning of the full decoded text, which gives the tokens before the bound.
  bool by_bounds(const std::vector<size_t>& bounds, std::vector<size_t>& ends) const {
    std::vector<size_t> decoded_ends;
    const std::string full = decode(ids_, count_, true, &decoded_ends);
    ends.assign(count_, part_.end);
    // Bounds from the last to the first: tokens that end at or before a bound get it as their end.
    for (auto bound = bounds.rbegin(); bound != bounds.rend(); ++bound) {
      if (*bound <= part_.begin || *bound >= part_.end) continue;
      std::vector<int32_t> ids;
      std::vector<data::EncodedPart> parts;
      const std::string_view before = text_.substr(0, *bound - part_.begin);
      if (!tokenizer_.encode_marked(
              before, [](size_t, size_t) { return false; }, ids, parts))
        tokenizer_.encode(before, ids);
      const std::string start = decode(ids.data(), ids.size(), true, nullptr);
      if (!full.starts_with(start)) return false;
      // If a token goes over the bound, the one before it ends before the bound.
      const bool over =
          std::find(decoded_ends.begin(), decoded_ends.end(), start.size()) == decoded_ends.end();
      for (size_t i = 0; i < count_; ++i)
        if (decoded_ends[i] <= start.size()) ends[i] = *bound - (over ? 1 : 0);
    }
    return true;
  }

 private:
  std::string decode(const int32_t* ids, size_t count, bool begin, std::vector<size_t>* ends) const {
    std::string out;
    if (ends) ends->clear();
    for (size_t i = 0; i < count; ++i) {
      tokenizer_.decode(ids + i, 1, out, begin && i == 0);
      if (ends) ends->push_back(out.size());
    }
    return out;
  }

  Tokenizer& tokenizer_;
  const std::string_view text_;
  const EncodedPart& part_;
  const int32_t* const ids_;
  const size_t count_;
};

}  // namespace

TextTokens encode_text(Tokenizer& tokenizer, std::string_view text,
                       const std::function<bool(size_t, size_t)>& allowed, const std::vector<size_t>& bounds,
                       const std::vector<std::string>& named, const std::string& where) {
  TextTokens out;
  std::vector<EncodedPart> parts;
  if (!tokenizer.encode_marked(text, allowed, out.ids, parts)) {
    if (!named.empty() && data::find_tokenizer_kind(tokenizer.name())->folder)
      fail(ExitCode::data,
           "{}: a SentencePiece model alone has no special tokens in text; expected the tokenizer.json of "
           "its folder",
           where);
    parts = encode_parts(tokenizer, text, allowed, named, out.ids);
  }
  std::vector<size_t> ends;
  for (const EncodedPart& part : parts) {
    const size_t count = part.ids_end - part.ids_begin;
    if (part.special || count == 1) {
      ends.assign(count, part.end);
    } else {
      const PartEnds finder(tokenizer, text, part, out.ids);
      if (!finder.exact(ends) && !finder.by_bounds(bounds, ends))
        fail(ExitCode::data,
             "{}: the tokenizer changes the text where trained text begins or ends, so its tokens are "
             "unknown, near \"{}\"",
             where, printable(text.substr(part.begin, part.end - part.begin), 60));
    }
    size_t begin = part.begin;
    for (size_t i = 0; i < count; ++i) {
      out.begins.push_back(begin);
      out.ends.push_back(begin = ends[i]);
      const bool special = part.special || (count > 0 && tokenizer.special(out.ids[part.ids_begin + i]));
      out.special.push_back(special);
    }
  }
  return out;
}

}  // namespace ltrain::chat
