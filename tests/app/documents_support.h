// Console blocks of documents: the commands that a page shows, and what it says they print.
#pragma once
#include <cctype>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace ltrain::test {

/// One command of a ```console block. "$ COMMAND" has the output that follows it, to the next one; the end of
/// the command may say its exit code, as a comment: "# exit 64". A line without "$ " is a command of which
/// the page says only that it works.
struct ShownCommand {
  std::string place;  ///< "docs/moe.md:12"
  size_t line = 0;    ///< 12: lines of the page before its output
  std::string command;
  std::vector<std::string> output;
  bool compared = false;  ///< the output is shown
  int code = 0;
};

inline std::vector<ShownCommand> shown_commands(const std::string& root, const std::string& document) {
  std::vector<ShownCommand> all;
  std::ifstream in(root + "/" + document);
  bool inside = false, begins = true;  // first line of a block, before any command
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.rfind("```", 0) == 0) {
      inside = line == "```console";
      begins = true;
      continue;
    }
    if (!inside) continue;
    const bool dollar = line.rfind("$ ", 0) == 0;
    const bool follows = !dollar && !begins && all.back().compared;
    if (!dollar && (follows || line.empty())) {
      if (follows) all.back().output.push_back(line);
      continue;
    }
    ShownCommand c;
    c.place = document + ":" + std::to_string(number);
    c.line = static_cast<size_t>(number);
    c.command = dollar ? line.substr(2) : line;
    c.compared = dollar;
    if (const size_t at = c.command.find("# exit "); at != std::string::npos)
      c.code = std::stoi(c.command.substr(at + 7));
    all.push_back(c);
    begins = false;
  }
  return all;
}

/// `text` is as `pattern` says, where "..." stands for any characters.
inline bool line_matches(const std::string& pattern, const std::string& text) {
  const size_t dots = pattern.find("...");
  if (dots == std::string::npos) return pattern == text;
  if (text.compare(0, dots, pattern, 0, dots) != 0) return false;
  const std::string rest = pattern.substr(dots + 3);
  for (size_t at = dots; at <= text.size(); ++at)
    if (line_matches(rest, text.substr(at))) return true;
  return false;
}

/// Line by line; a shown line "..." stands for any number of lines.
inline bool lines_match(const std::vector<std::string>& shown, const std::vector<std::string>& printed,
                        size_t s = 0, size_t p = 0) {
  if (s == shown.size()) return p == printed.size();
  if (shown[s] == "...") {
    for (size_t at = p; at <= printed.size(); ++at)
      if (lines_match(shown, printed, s + 1, at)) return true;
    return false;
  }
  return p < printed.size() && line_matches(shown[s], printed[p]) &&
         lines_match(shown, printed, s + 1, p + 1);
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// A line without its numbers, and with one space where they and other spaces were.
inline std::string words_of(const std::string& line) {
  std::string words;
  for (const char c : line) {
    const bool left_out = std::isspace(static_cast<unsigned char>(c)) ||
                          std::isdigit(static_cast<unsigned char>(c)) || c == '.' || c == ',';
    if (!left_out)
      words += c;
    else if (!words.empty() && words.back() != ' ')
      words += ' ';
  }
  return words;
}

/// The shown lines with new figures: a line that is not printed any more becomes the next printed line with
/// the same words. Empty if a line has none. Without "..." all that is printed.
inline std::vector<std::string> renewed(const std::vector<std::string>& shown,
                                        const std::vector<std::string>& printed) {
  std::vector<std::string> out;
  size_t next = 0;
  bool dots = false;
  for (const std::string& line : shown) {
    dots = dots || line.find("...") != std::string::npos;
    if (line == "...") {
      out.push_back(line);
      continue;
    }
    size_t same = next, alike = next;
    while (same < printed.size() && !line_matches(line, printed[same])) ++same;
    while (alike < printed.size() && words_of(line) != words_of(printed[alike])) ++alike;
    const size_t found = same < printed.size() ? same : alike;
    if (found == printed.size()) return dots ? std::vector<std::string>() : printed;
    out.push_back(found == same ? line : printed[found]);
    next = found + 1;
  }
  return dots ? out : printed;
}

}  // namespace ltrain::test
