#include "runtime/recipe/other_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ltrain::recipe {
namespace {

/// Tables of the page with names in their first column, by the heading above. A name in several tables
/// belongs to the first.
constexpr std::array<std::pair<const char*, const char*>, 4> kTables{{
    {"## Hugging Face Trainer", "the Hugging Face Trainer's"},
    {"## DeepSpeed", "DeepSpeed's"},
    {"## torchtitan", "torchtitan's"},
    {"## Megatron-LM", "Megatron-LM's"},
}};

/// Normalized name: "--Num-Layers" and "num_layers" are the same.
std::string plain(const std::string& name) {
  std::string out;
  for (const char c : name.substr(std::min(name.find_first_not_of('-'), name.size())))
    out += c == '-' ? '_' : c;
  return out;
}

/// Words in backticks, without surrounding quotes and brackets of JSON.
std::vector<std::string> names_in(const std::string& cell) {
  std::vector<std::string> out;
  for (size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at)) {
    const size_t end = cell.find('`', at + 1);
    if (end == std::string::npos) break;
    std::string word;
    for (const char c : cell.substr(at + 1, end - at - 1) + " ") {
      const bool part = std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
      if (part) word += c;
      if (!part && !word.empty()) out.push_back(std::exchange(word, ""));
    }
    at = end + 1;
  }
  return out;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::vector<std::string> cells_of(const std::string& row) {
  std::vector<std::string> out;
  std::istringstream in(row);
  std::string cell;
  std::getline(in, cell, '|');  // text before the first cell
  while (std::getline(in, cell, '|')) out.push_back(trimmed(cell));
  return out;
}

/// The text without backticks, and with links replaced by their words.
std::string without_marks(std::string text) {
  std::erase(text, '`');
  for (size_t close = text.find("]("); close != std::string::npos; close = text.find("](")) {
    const size_t open = text.rfind('[', close), end = text.find(')', close);
    if (open == std::string::npos || end == std::string::npos) break;
    text.erase(close, end + 1 - close);
    text.erase(open, 1);
  }
  return text;
}

std::string hint(const std::string& whose, const std::string& name, const std::string& here,
                 const std::string& differs) {
  const std::string more = differs.empty() ? "" : fmt::format(" ({})", without_marks(differs));
  if (here == "none") return fmt::format("{} `{}` has no counterpart here{}", whose, name, more);
  if (here == "always") return fmt::format("what {} `{}` asks for is always so here{}", whose, name, more);
  return fmt::format("{} `{}` is {} here{}", whose, name, without_marks(here), more);
}

/// Hints, keyed by name.
std::map<std::string, std::string> read_tables() {
  // keyed by the full name, its last part, and its first part
  std::map<std::string, std::string> whole, last, sections;
  for (const auto& [heading, whose] : kTables) {
    std::istringstream page(kComingFrom);
    bool here = false;
    for (std::string line; std::getline(page, line);) {
      if (line.starts_with("## ")) here = line == heading;
      if (!here || !line.starts_with("| ")) continue;
      const std::vector<std::string> cells = cells_of(line);
      if (cells.size() < 3 || cells[1] == "recipe" || cells[1].starts_with("see ")) continue;
      for (const std::string& name : names_in(cells[0])) {
        const std::string text = hint(whose, name, cells[1], cells.back());
        whole.emplace(plain(name), text);
        const size_t dot = name.rfind('.');
        if (dot == std::string::npos) continue;
        last.emplace(plain(name.substr(dot + 1)), text);
        sections.emplace(plain(name.substr(0, name.find('.'))), text);
      }
    }
  }
  for (const auto* more : {&last, &sections})  // insert() keeps hints of full names
    whole.insert(more->begin(), more->end());
  return whole;
}

}  // namespace

std::string in_other_trainers(const std::string& name) {
  static const std::map<std::string, std::string> hints = read_tables();
  const auto at = hints.find(plain(name));
  return at == hints.end() ? "" : at->second;
}

}  // namespace ltrain::recipe
