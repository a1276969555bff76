// How often a text has another one in it.
#pragma once
#include <string>

namespace ltrain::test {

/// Places where `part` begins in `text`; they may overlap.
inline size_t occurrences(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace ltrain::test
