#include "runtime/recipe/yaml_hints.h"

#include <cctype>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/recipe/yaml_tree.h"

namespace ltrain::recipe {
namespace {

/// A Unicode blank that looks like a space but is not one in YAML.
struct Blank {
  std::string_view bytes;
  const char* name;
};
constexpr Blank kBlanks[] = {
    {"\xC2\xA0", "a non-breaking space (U+00A0)"},   {"\xE2\x80\x87", "a figure space (U+2007)"},
    {"\xE2\x80\x89", "a thin space (U+2009)"},       {"\xE2\x80\xAF", "a narrow non-breaking space (U+202F)"},
    {"\xE2\x80\x8B", "a zero-width space (U+200B)"}, {"\xE3\x80\x80", "an ideographic space (U+3000)"}};

const Blank* blank_at(std::string_view text) {
  for (const Blank& b : kBlanks)
    if (text.starts_with(b.bytes)) return &b;
  return nullptr;
}

/// Calls `see(line, column, rest, indenting, before)` for each character outside quotes and comments.
/// `before`: the last non-space character of the line; 0 at its beginning.
template <class See>
void walk(std::string_view text, See see) {
  int line = 1, column = 1;
  bool indenting = true;
  char quote = 0, before = 0;
  for (size_t i = 0; i < text.size(); ++i, ++column) {
    const char c = text[i];
    if (c == '\n') {
      ++line, column = 0, indenting = true, before = 0;
      continue;
    }
    if (quote) {
      if (c == '\\' && quote == '"' && i + 1 < text.size() && text[i + 1] != '\n')
        ++i, ++column;
      else if (c == quote)
        quote = 0;
      continue;
    }
    const bool begins = indenting || text[i - 1] == ' ';
    if (c == '#' && begins) {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
      continue;
    }
    const bool starts_value =
        before == 0 || before == ':' || before == '-' || before == ',' || before == '[' || before == '{';
    if ((c == '"' || c == '\'') && starts_value) quote = c;
    see(line, column, text.substr(i), indenting, before);
    indenting = indenting && c == ' ';
    if (c != ' ') before = c;
  }
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
}

}  // namespace

void refuse_blanks(std::string_view text, const std::string& source) {
  walk(text, [&](int line, int column, std::string_view rest, bool indenting, char before) {
    const auto place = [&] { return Place{source, line, column}.text(); };
    if (indenting && rest[0] == '\t')
      fail(ExitCode::usage, "{}: a tab in the indentation; YAML indents with spaces", place());
    const Blank* blank = indenting || before == ':' ? blank_at(rest) : nullptr;
    if (blank)
      fail(ExitCode::usage, "{}: {} {}; YAML knows only the space of the space bar: type it again", place(),
           blank->name, indenting ? "in the indentation" : "behind a colon");
  });
}

std::string missing_space_hint(std::string_view text) {
  size_t colon = 0;
  while (colon < text.size() && is_word(text[colon])) ++colon;
  if (colon == 0 || colon + 1 >= text.size() || text[colon] != ':') return "";
  if (!std::isalpha(static_cast<unsigned char>(text[0]))) return "";
  const std::string_view value = text.substr(colon + 1, text.find_first_of(" \n,", colon + 1) - colon - 1);
  if (value.empty() || value[0] == ':' || value[0] == '/' || value[0] == '\\') return "";
  if (value[0] == '{' || value[0] == '[')
    return fmt::format("a space is missing behind the colon of `{}`", printable(text.substr(0, colon), 80));
  return fmt::format("a space is missing behind the colon: `{}: {}`", printable(text.substr(0, colon), 80),
                     printable(value, 80));
}

void explain_syntax(std::string_view text, const std::string& source) {
  struct Bracket {
    char open;
    Place place;
  };
  std::vector<Bracket> open;
  std::string slip;  // hint for the first key without a space after its colon
  walk(text, [&](int line, int column, std::string_view rest, bool indenting, char before) {
    const char c = rest[0];
    const Place place{source, line, column};
    const bool starts = !open.empty() || before == 0 || before == ':' || before == '-';
    if ((c == '{' || c == '[') && starts) open.push_back({c, place});
    if ((c == '}' || c == ']') && !open.empty()) {
      const char wanted = open.back().open == '{' ? '}' : ']';
      if (c != wanted)
        fail(ExitCode::usage, "{}: not YAML: {} where the {} of {}:{} needs a {}", place.text(), c,
             open.back().open, open.back().place.line, open.back().place.column, wanted);
      open.pop_back();
    }
    const bool begins_word = (indenting && c != ' ') || ((before == '{' || before == ',') && c != ' ');
    if (slip.empty() && begins_word)
      if (const std::string hint = missing_space_hint(rest.substr(0, rest.find_first_of("\n}")));
          !hint.empty())
        slip = fmt::format("{}: not YAML: {}", place.text(), hint);
  });
  if (!open.empty())
    fail(ExitCode::usage, "{}: not YAML: this {} is not closed; a {} is missing", open.back().place.text(),
         open.back().open, open.back().open == '{' ? '}' : ']');
  if (!slip.empty()) fail(ExitCode::usage, "{}", slip);
}

}  // namespace ltrain::recipe
