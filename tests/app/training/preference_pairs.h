// Made-up preference pairs.
#pragma once
#include <fstream>
#include <string>

#include "base/json/json.h"
#include "tests/app/run_program.h"

namespace ltrain::test {

/// Writes pairs.jsonl with 90 pairs.
inline void write_pairs(const TempRun& t) {
  std::ofstream pairs(t.folder() + "/pairs.jsonl");
  for (int i = 0; i < 90; ++i) {
    const std::string good = " " + std::to_string(i + 1) + std::string(static_cast<size_t>(i % 4), '.'),
                      bad = " no, " + std::to_string(i * i);
    pairs << nlohmann::json{{"prompt", "What follows " + std::to_string(i) + "?"},
                            {"chosen", good},
                            {"rejected", bad}}
                 .dump()
          << "\n";
  }
}

}  // namespace ltrain::test
