#include "planner/exports/command_words.h"

#include <cctype>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::exports {

std::vector<std::string> command_words(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (!quote && !in_word && c == '#') {  // a comment
      i = line.find('\n', i);
      if (i == std::string::npos) break;
      continue;
    }
    if (quote != '\'' && (c == '$' || c == '`'))
      fail(ExitCode::usage,
           "--from-megatron: character {}: {} stands for what a shell knows; write its value", i + 1,
           printable(line.substr(i, 24)));
    if (quote != '\'' && c == '\\' && i + 1 < line.size()) {
      if (line[++i] == '\n') continue;
      word += line[i];
      in_word = true;
    } else if (quote ? c == quote : c == '\'' || c == '"') {
      quote = quote ? 0 : c;
      in_word = true;
    } else if (!quote && std::isspace(static_cast<unsigned char>(c))) {
      if (in_word) words.push_back(word);
      word.clear();
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (quote) fail(ExitCode::usage, "--from-megatron: a quote {} has no end", quote);
  if (in_word) words.push_back(word);
  return words;
}

}  // namespace ltrain::exports
