// Letter case and printability of strings, as Python's str has them.
#include <utf8proc.h>

#include <algorithm>

#include "runtime/chat/jinja_text.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::chat {
namespace {

using data::next_char;

/// Letters whose upper or title case is more than one code point (Unicode's SpecialCasing).
struct LongCase {
  uint32_t code;
  const char *upper, *title;
};
constexpr LongCase kLongCases[] = {
    // clang-format off
    {0x00DF, "SS", "Ss"},
    {0x0149, "\312\274N", "\312\274N"},
    {0x01F0, "J\314\214", "J\314\214"},
    {0x0390, "\316\231\314\210\314\201", "\316\231\314\210\314\201"},
    {0x03B0, "\316\245\314\210\314\201", "\316\245\314\210\314\201"},
    {0x0587, "\324\265\325\222", "\324\265\326\202"},
    {0x1E96, "H\314\261", "H\314\261"},
    {0x1E97, "T\314\210", "T\314\210"},
    {0x1E98, "W\314\212", "W\314\212"},
    {0x1E99, "Y\314\212", "Y\314\212"},
    {0x1E9A, "A\312\276", "A\312\276"},
    {0x1F50, "\316\245\314\223", "\316\245\314\223"},
    {0x1F52, "\316\245\314\223\314\200", "\316\245\314\223\314\200"},
    {0x1F54, "\316\245\314\223\314\201", "\316\245\314\223\314\201"},
    {0x1F56, "\316\245\314\223\315\202", "\316\245\314\223\315\202"},
    {0x1F80, "\341\274\210\316\231", "\341\276\210"},
    {0x1F81, "\341\274\211\316\231", "\341\276\211"},
    {0x1F82, "\341\274\212\316\231", "\341\276\212"},
    {0x1F83, "\341\274\213\316\231", "\341\276\213"},
    {0x1F84, "\341\274\214\316\231", "\341\276\214"},
    {0x1F85, "\341\274\215\316\231", "\341\276\215"},
    {0x1F86, "\341\274\216\316\231", "\341\276\216"},
    {0x1F87, "\341\274\217\316\231", "\341\276\217"},
    {0x1F88, "\341\274\210\316\231", "\341\276\210"},
    {0x1F89, "\341\274\211\316\231", "\341\276\211"},
    {0x1F8A, "\341\274\212\316\231", "\341\276\212"},
    {0x1F8B, "\341\274\213\316\231", "\341\276\213"},
    {0x1F8C, "\341\274\214\316\231", "\341\276\214"},
    {0x1F8D, "\341\274\215\316\231", "\341\276\215"},
    {0x1F8E, "\341\274\216\316\231", "\341\276\216"},
    {0x1F8F, "\341\274\217\316\231", "\341\276\217"},
    {0x1F90, "\341\274\250\316\231", "\341\276\230"},
    {0x1F91, "\341\274\251\316\231", "\341\276\231"},
    {0x1F92, "\341\274\252\316\231", "\341\276\232"},
    {0x1F93, "\341\274\253\316\231", "\341\276\233"},
    {0x1F94, "\341\274\254\316\231", "\341\276\234"},
    {0x1F95, "\341\274\255\316\231", "\341\276\235"},
    {0x1F96, "\341\274\256\316\231", "\341\276\236"},
    {0x1F97, "\341\274\257\316\231", "\341\276\237"},
    {0x1F98, "\341\274\250\316\231", "\341\276\230"},
    {0x1F99, "\341\274\251\316\231", "\341\276\231"},
    {0x1F9A, "\341\274\252\316\231", "\341\276\232"},
    {0x1F9B, "\341\274\253\316\231", "\341\276\233"},
    {0x1F9C, "\341\274\254\316\231", "\341\276\234"},
    {0x1F9D, "\341\274\255\316\231", "\341\276\235"},
    {0x1F9E, "\341\274\256\316\231", "\341\276\236"},
    {0x1F9F, "\341\274\257\316\231", "\341\276\237"},
    {0x1FA0, "\341\275\250\316\231", "\341\276\250"},
    {0x1FA1, "\341\275\251\316\231", "\341\276\251"},
    {0x1FA2, "\341\275\252\316\231", "\341\276\252"},
    {0x1FA3, "\341\275\253\316\231", "\341\276\253"},
    {0x1FA4, "\341\275\254\316\231", "\341\276\254"},
    {0x1FA5, "\341\275\255\316\231", "\341\276\255"},
    {0x1FA6, "\341\275\256\316\231", "\341\276\256"},
    {0x1FA7, "\341\275\257\316\231", "\341\276\257"},
    {0x1FA8, "\341\275\250\316\231", "\341\276\250"},
    {0x1FA9, "\341\275\251\316\231", "\341\276\251"},
    {0x1FAA, "\341\275\252\316\231", "\341\276\252"},
    {0x1FAB, "\341\275\253\316\231", "\341\276\253"},
    {0x1FAC, "\341\275\254\316\231", "\341\276\254"},
    {0x1FAD, "\341\275\255\316\231", "\341\276\255"},
    {0x1FAE, "\341\275\256\316\231", "\341\276\256"},
    {0x1FAF, "\341\275\257\316\231", "\341\276\257"},
    {0x1FB2, "\341\276\272\316\231", "\341\276\272\315\205"},
    {0x1FB3, "\316\221\316\231", "\341\276\274"},
    {0x1FB4, "\316\206\316\231", "\316\206\315\205"},
    {0x1FB6, "\316\221\315\202", "\316\221\315\202"},
    {0x1FB7, "\316\221\315\202\316\231", "\316\221\315\202\315\205"},
    {0x1FBC, "\316\221\316\231", "\341\276\274"},
    {0x1FC2, "\341\277\212\316\231", "\341\277\212\315\205"},
    {0x1FC3, "\316\227\316\231", "\341\277\214"},
    {0x1FC4, "\316\211\316\231", "\316\211\315\205"},
    {0x1FC6, "\316\227\315\202", "\316\227\315\202"},
    {0x1FC7, "\316\227\315\202\316\231", "\316\227\315\202\315\205"},
    {0x1FCC, "\316\227\316\231", "\341\277\214"},
    {0x1FD2, "\316\231\314\210\314\200", "\316\231\314\210\314\200"},
    {0x1FD3, "\316\231\314\210\314\201", "\316\231\314\210\314\201"},
    {0x1FD6, "\316\231\315\202", "\316\231\315\202"},
    {0x1FD7, "\316\231\314\210\315\202", "\316\231\314\210\315\202"},
    {0x1FE2, "\316\245\314\210\314\200", "\316\245\314\210\314\200"},
    {0x1FE3, "\316\245\314\210\314\201", "\316\245\314\210\314\201"},
    {0x1FE4, "\316\241\314\223", "\316\241\314\223"},
    {0x1FE6, "\316\245\315\202", "\316\245\315\202"},
    {0x1FE7, "\316\245\314\210\315\202", "\316\245\314\210\315\202"},
    {0x1FF2, "\341\277\272\316\231", "\341\277\272\315\205"},
    {0x1FF3, "\316\251\316\231", "\341\277\274"},
    {0x1FF4, "\316\217\316\231", "\316\217\315\205"},
    {0x1FF6, "\316\251\315\202", "\316\251\315\202"},
    {0x1FF7, "\316\251\315\202\316\231", "\316\251\315\202\315\205"},
    {0x1FFC, "\316\251\316\231", "\341\277\274"},
    {0xFB00, "FF", "Ff"},
    {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"},
    {0xFB03, "FFI", "Ffi"},
    {0xFB04, "FFL", "Ffl"},
    {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"},
    {0xFB13, "\325\204\325\206", "\325\204\325\266"},
    {0xFB14, "\325\204\324\265", "\325\204\325\245"},
    {0xFB15, "\325\204\324\273", "\325\204\325\253"},
    {0xFB16, "\325\216\325\206", "\325\216\325\266"},
    {0xFB17, "\325\204\324\275", "\325\204\325\255"},
    // clang-format on
};

const LongCase* long_case(uint32_t code) {
  const auto* end = std::end(kLongCases);
  const auto* row = std::lower_bound(std::begin(kLongCases), end, code,
                                     [](const LongCase& r, uint32_t c) { return r.code < c; });
  return row != end && row->code == code ? row : nullptr;
}

std::string encoded(uint32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(n)};
}

bool lower_code(uint32_t c) { return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0; }
bool upper_code(uint32_t c) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0; }
bool title_code(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LT;
}
bool cased(uint32_t c) { return lower_code(c) || upper_code(c) || title_code(c); }

std::string raised(uint32_t code, bool title) {
  if (const LongCase* row = code < 0x80 ? nullptr : long_case(code)) return title ? row->title : row->upper;
  const auto c = static_cast<utf8proc_int32_t>(code);
  return encoded(static_cast<uint32_t>(title ? utf8proc_totitle(c) : utf8proc_toupper(c)));
}

/// `final_sigma`: a sigma here is at the end of a word.
std::string lowered(uint32_t code, bool final_sigma) {
  if (code == 0x130) return "i\xcc\x87";
  if (code == 0x3A3 && final_sigma) return "\xcf\x82";
  return encoded(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

struct Point {
  uint32_t code;
  size_t begin, end;
};

std::vector<Point> points_of(Session& session, const Text& text) {
  session.allocate(text.bytes.size() * sizeof(Point));
  std::vector<Point> points;
  const char *const begin = text.bytes.data(), *const end = begin + text.bytes.size();
  for (const char* p = begin; p < end;) {
    const data::Char c = next_char(p, end);
    const auto at = static_cast<size_t>(p - begin);
    points.push_back({c.code, at, at + static_cast<size_t>(c.bytes)});
    p += c.bytes;
  }
  return points;
}

bool final_sigma(const std::vector<Point>& points, size_t i) {
  return i > 0 && cased(points[i - 1].code) && (i + 1 == points.size() || !cased(points[i + 1].code));
}

bool printable_code(uint32_t code) {
  if (code == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

}  // namespace

TextPtr change_case(Session& session, const TextPtr& text, Case to) {
  const std::vector<Point> points = points_of(session, *text);
  TextBuilder out(session);
  bool in_word = false;
  for (size_t i = 0; i < points.size(); ++i) {
    const uint32_t code = points[i].code;
    const bool raise = to == Case::upper || (to == Case::title && !in_word) ||
                       (to == Case::capitalize && i == 0) || (to == Case::swap && lower_code(code));
    const bool keep = to == Case::swap && !lower_code(code) && !upper_code(code);
    in_word = cased(code);
    const bool title = to == Case::title || to == Case::capitalize;
    out.add(keep    ? text->bytes.substr(points[i].begin, points[i].end - points[i].begin)
            : raise ? raised(code, title)
                    : lowered(code, final_sigma(points, i)),
            origin_at(*text, points[i].begin));
  }
  return out.finish(text->markup);
}

TextPtr jinja_title(Session& session, const TextPtr& text) {
  const std::vector<Point> points = points_of(session, *text);
  TextBuilder out(session);
  bool starts = true;
  for (size_t i = 0; i < points.size(); ++i) {
    const uint32_t code = points[i].code;
    const bool separator =
        python_space(code) ||
        (code < 0x80 && std::string_view("-({[<").find(static_cast<char>(code)) != std::string_view::npos);
    out.add(separator ? encoded(code)
            : starts  ? raised(code, false)
                      : lowered(code, final_sigma(points, i)),
            origin_at(*text, points[i].begin));
    starts = separator;
  }
  return out.finish(text->markup);
}

void add_repr(const Text& text, TextBuilder& out) {
  const std::string& bytes = text.bytes;
  const char quote =
      bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos ? '"' : '\'';
  if (text.markup) out.add("Markup(");
  out.add(std::string_view(&quote, 1));
  const char* const end = bytes.data() + bytes.size();
  for (size_t at = 0; at < bytes.size();) {
    const data::Char c = next_char(bytes.data() + at, end);
    const auto size = static_cast<size_t>(c.bytes);
    std::string shown = bytes.substr(at, size);
    if (c.code == '\\' || c.code == static_cast<uint32_t>(quote))
      shown.insert(0, 1, '\\');
    else if (c.code == '\n' || c.code == '\r' || c.code == '\t')
      shown = {'\\', "tn??r"[c.code - 9]};
    else if (!printable_code(c.code))
      shown = c.code < 0x100     ? fmt::format("\\x{:02x}", c.code)
              : c.code < 0x10000 ? fmt::format("\\u{:04x}", c.code)
                                 : fmt::format("\\U{:08x}", c.code);
    out.add(shown, origin_at(text, at));
    at += size;
  }
  out.add(std::string_view(&quote, 1));
  if (text.markup) out.add(")");
}

namespace {

bool all_cased(const Text& text, bool (*good)(uint32_t)) {
  bool any = false;
  const char* const end = text.bytes.data() + text.bytes.size();
  for (const char* p = text.bytes.data(); p < end;) {
    const data::Char c = next_char(p, end);
    if (cased(c.code) && !good(c.code)) return false;
    any = any || good(c.code);
    p += c.bytes;
  }
  return any;
}

}  // namespace

bool is_upper(const Text& text) { return all_cased(text, upper_code); }
bool is_lower(const Text& text) { return all_cased(text, lower_code); }

}  // namespace ltrain::chat
