// Files of one JSON value a line, in the folder of a run.
#pragma once
#include <fstream>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "tests/app/run_program.h"

namespace ltrain::test {

inline std::vector<nlohmann::json> json_lines(const TempRun& t, const std::string& name) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(t.folder() + "/" + name);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace ltrain::test
