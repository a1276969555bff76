// Notes of a command on standard error.
#pragma once
#include <cstdio>
#include <string>
#include <vector>

namespace ltrain::app {

inline void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::fprintf(stderr, "note: %s\n", note.c_str());
}

}  // namespace ltrain::app
