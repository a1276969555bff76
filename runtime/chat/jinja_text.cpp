#include "runtime/chat/jinja_text.h"

#include <algorithm>
#include <set>

#include "runtime/tokenizer/unicode.h"

namespace ltrain::chat {
namespace {

using data::next_char;

bool is_ascii(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// Start of the code point that ends before `at` > 0.
size_t before(std::string_view bytes, size_t at) {
  --at;
  while (at > 0 && (static_cast<unsigned char>(bytes[at]) & 0xC0u) == 0x80u) --at;
  return at;
}

uint32_t code_at(std::string_view bytes, size_t at) {
  return next_char(bytes.data() + at, bytes.data() + bytes.size()).code;
}

size_t size_at(std::string_view bytes, size_t at) {
  return static_cast<size_t>(next_char(bytes.data() + at, bytes.data() + bytes.size()).bytes);
}

std::set<uint32_t> codes_of(std::string_view bytes) {
  std::set<uint32_t> codes;
  for (size_t at = 0; at < bytes.size(); at += size_at(bytes, at)) codes.insert(code_at(bytes, at));
  return codes;
}

}  // namespace

size_t Text::length() const {
  if (ascii) return bytes.size();
  return static_cast<size_t>(std::count_if(
      bytes.begin(), bytes.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
}

void TextBuilder::add(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  session_.check_text(text_.bytes.size() + bytes.size());
  session_.allocate(bytes.size());
  if (generation != 0) origin.generation = generation;
  text_.ascii = text_.ascii && is_ascii(bytes);
  text_.bytes += bytes;
  if (!text_.runs.empty() && text_.runs.back().origin == origin) {
    text_.runs.back().end = text_.bytes.size();
  } else {
    session_.allocate(sizeof(Run));
    text_.runs.push_back({text_.bytes.size(), origin});
  }
}

void TextBuilder::add(const Text& text, size_t begin, size_t end) {
  auto run = std::upper_bound(text.runs.begin(), text.runs.end(), begin,
                              [](size_t at, const Run& r) { return at < r.end; });
  for (; begin < end; ++run) {
    const size_t stop = std::min(end, run->end);
    add(std::string_view(text.bytes).substr(begin, stop - begin), run->origin);
    begin = stop;
  }
}

TextPtr TextBuilder::finish(bool markup) {
  session_.allocate(sizeof(Text));
  text_.markup = markup;
  return std::make_shared<const Text>(take());
}

Text TextBuilder::take() {
  Text done = std::move(text_);
  text_ = Text{};
  return done;
}

TextPtr make_text(Session& session, std::string_view bytes, Origin origin) {
  TextBuilder out(session);
  out.add(bytes, origin);
  return out.finish();
}

TextPtr part_of(Session& session, const TextPtr& text, size_t begin, size_t end) {
  if (begin == 0 && end == text->bytes.size()) return text;
  TextBuilder out(session);
  out.add(*text, begin, end);
  return out.finish(text->markup);
}

Origin origin_at(const Text& text, size_t byte) {
  const auto run = std::upper_bound(text.runs.begin(), text.runs.end(), byte,
                                    [](size_t at, const Run& r) { return at < r.end; });
  return run == text.runs.end() ? Origin{} : run->origin;
}

bool has_data(const Text& text) {
  return std::any_of(text.runs.begin(), text.runs.end(), [](const Run& r) { return r.origin.data; });
}

size_t byte_of(const Text& text, size_t index) {
  if (text.ascii) return std::min(index, text.bytes.size());
  size_t at = 0;
  for (; index > 0 && at < text.bytes.size(); --index) at += size_at(text.bytes, at);
  return at;
}

bool python_space(uint32_t code) {
  return (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

size_t valid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const data::Char c = next_char(text.data() + at, text.data() + text.size());
    if (!c.valid) return at;
    at += static_cast<size_t>(c.bytes);
  }
  return at;
}

TextPtr strip(Session& session, const TextPtr& text, const Text* chars, bool left, bool right) {
  const std::set<uint32_t> set = chars ? codes_of(chars->bytes) : std::set<uint32_t>{};
  const auto strips = [&](uint32_t code) { return chars ? set.contains(code) : python_space(code); };
  const std::string_view bytes = text->bytes;
  size_t begin = 0, end = bytes.size();
  while (left && begin < end && strips(code_at(bytes, begin))) begin += size_at(bytes, begin);
  while (right && end > begin) {
    const size_t p = before(bytes, end);
    if (!strips(code_at(bytes, p))) break;
    end = p;
  }
  session.step((bytes.size() - (end - begin)) / 64);
  return part_of(session, text, begin, end);
}

namespace {

/// Splits at white space, as str.split() does.
std::vector<TextPtr> split_words(Session& session, const TextPtr& text, int64_t most, bool from_right) {
  const std::string_view bytes = text->bytes;
  std::vector<std::pair<size_t, size_t>> words;
  for (size_t at = 0; at < bytes.size();) {
    while (at < bytes.size() && python_space(code_at(bytes, at))) at += size_at(bytes, at);
    const size_t begin = at;
    while (at < bytes.size() && !python_space(code_at(bytes, at))) at += size_at(bytes, at);
    if (at > begin) words.emplace_back(begin, at);
  }
  const size_t parts_limit = static_cast<size_t>(most) + 1;
  if (most >= 0 &&
      words.size() >= parts_limit) {  // the last split leaves the rest as one part, with its outer end
    if (from_right) {
      const size_t rest = words.size() - parts_limit;
      words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(rest));
      words[0].first = 0;
    } else {
      words.resize(parts_limit);
      words.back().second = bytes.size();
    }
  }
  std::vector<TextPtr> parts;
  for (const auto& [begin, end] : words) parts.push_back(part_of(session, text, begin, end));
  return parts;
}

}  // namespace

std::vector<TextPtr> split(Session& session, const TextPtr& text, const Text* separator, int64_t most,
                           bool from_right) {
  if (!separator) return split_words(session, text, most, from_right);
  if (separator->bytes.empty()) session.fail("split: the separator is empty");
  const std::string &bytes = text->bytes, &by = separator->bytes;
  std::vector<size_t> cuts;  // starts of separators
  const auto more = [&] { return most < 0 || cuts.size() < static_cast<size_t>(most); };
  if (from_right) {
    for (size_t at = bytes.size(); more();) {
      if (at < by.size() || (at = bytes.rfind(by, at - by.size())) == std::string::npos) break;
      cuts.push_back(at);
    }
    std::reverse(cuts.begin(), cuts.end());
  } else {
    for (size_t at = 0; more() && (at = bytes.find(by, at)) != std::string::npos; at += by.size())
      cuts.push_back(at);
  }
  std::vector<TextPtr> parts;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    session.allocate(sizeof(TextPtr) * 2);
    parts.push_back(part_of(session, text, begin, cut));
    begin = cut + by.size();
  }
  parts.push_back(part_of(session, text, begin, bytes.size()));
  return parts;
}

std::vector<TextPtr> split_lines(Session& session, const TextPtr& text, bool keep_ends) {
  const auto ends_line = [](uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  const std::string_view bytes = text->bytes;
  std::vector<TextPtr> lines;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const uint32_t code = code_at(bytes, at);
    size_t next = at + size_at(bytes, at);
    if (ends_line(code)) {
      if (code == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      lines.push_back(part_of(session, text, begin, keep_ends ? next : at));
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) lines.push_back(part_of(session, text, begin, bytes.size()));
  return lines;
}

TextPtr replace(Session& session, const TextPtr& text, const Text& old, const Text& by, int64_t count) {
  TextBuilder out(session);
  const std::string& bytes = text->bytes;
  const auto more = [&] { return count < 0 || count-- > 0; };
  size_t done = 0;
  if (old.bytes.empty()) {  // before each code point, and at the end
    for (; done < bytes.size(); done += size_at(bytes, done)) {
      if (!more()) break;
      out.add(by);
      out.add(*text, done, done + size_at(bytes, done));
    }
    if (done == bytes.size() && more()) out.add(by);
  } else {
    for (size_t at; (at = bytes.find(old.bytes, done)) != std::string::npos && more();
         done = at + old.bytes.size()) {
      out.add(*text, done, at);
      out.add(by);
      session.step();
    }
  }
  out.add(*text, done, bytes.size());
  return out.finish(text->markup);
}

TextPtr repeat(Session& session, const TextPtr& text, int64_t count) {
  TextBuilder out(session);
  for (; count > 0 && !text->bytes.empty(); --count) {
    session.step();
    out.add(*text);
  }
  return out.finish(text->markup);
}

TextPtr pick(Session& session, const TextPtr& text, int64_t start, int64_t step, int64_t count) {
  if (count <= 0) return make_text(session, "");
  if (step == 1) {
    const size_t begin = byte_of(*text, static_cast<size_t>(start));
    if (text->ascii) return part_of(session, text, begin, begin + static_cast<size_t>(count));
    size_t end = begin;
    for (; count > 0; --count) end += size_at(text->bytes, end);
    return part_of(session, text, begin, end);
  }
  std::vector<size_t> starts;
  if (!text->ascii)
    for (size_t at = 0; at < text->bytes.size(); at += size_at(text->bytes, at)) starts.push_back(at);
  session.allocate(starts.size() * sizeof(size_t));
  TextBuilder out(session);
  for (; count > 0; --count, start += step) {
    const size_t at = text->ascii ? static_cast<size_t>(start) : starts[static_cast<size_t>(start)];
    out.add(*text, at, at + size_at(text->bytes, at));
  }
  return out.finish(text->markup);
}

TextPtr escape_html(Session& session, const TextPtr& text) {
  if (text->markup) return text;
  TextBuilder out(session);
  size_t done = 0;
  for (size_t at = 0; at < text->bytes.size(); ++at) {
    const char c = text->bytes[at];
    const char* by = c == '&'    ? "&amp;"
                     : c == '<'  ? "&lt;"
                     : c == '>'  ? "&gt;"
                     : c == '"'  ? "&#34;"
                     : c == '\'' ? "&#39;"
                                 : nullptr;
    if (!by) continue;
    out.add(*text, done, at);
    out.add(by, origin_at(*text, at));
    done = at + 1;
  }
  out.add(*text, done, text->bytes.size());
  return out.finish(true);
}

void add_json(const Text& text, bool ensure_ascii, TextBuilder& out) {
  const std::string_view bytes = text.bytes;
  out.add("\"");
  size_t done = 0;
  for (size_t at = 0; at < bytes.size();) {
    const uint32_t code = code_at(bytes, at);
    const size_t size = size_at(bytes, at);
    std::string by;
    if (code == '"' || code == '\\')
      by = {'\\', static_cast<char>(code)};
    else if (code == '\n' || code == '\r' || code == '\t' || code == '\b' || code == '\f')
      by = {'\\', "btn?fr"[code - 8]};
    else if (code < 0x20 || (ensure_ascii && code >= 0x7F && code < 0x10000))
      by = fmt::format("\\u{:04x}", code);
    else if (ensure_ascii && code >= 0x10000)
      by = fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
    if (!by.empty()) {
      out.add(text, done, at);
      out.add(by, origin_at(text, at));
      done = at + size;
    }
    at += size;
  }
  out.add(text, done, bytes.size());
  out.add("\"");
}

}  // namespace ltrain::chat
