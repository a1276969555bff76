// Texts with the ids that other projects' tokenizers give them: tests/golden/tokenizers/*.cases.jsonl.
#pragma once
#include <fstream>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/support/tokenizer_files.h"

namespace ltrain::data::test {

inline std::vector<nlohmann::json> cases_of(const std::string& name) {
  std::ifstream file(ltrain::test::kTokenizerFiles + name + ".cases.jsonl");
  std::vector<nlohmann::json> cases;
  for (std::string line; std::getline(file, line);) cases.push_back(nlohmann::json::parse(line));
  return cases;
}

/// Number of cases whose ids, or whose text from them, are others than `t` makes.
inline int differences(Tokenizer& t, const std::vector<nlohmann::json>& cases) {
  int wrong = 0;
  for (const nlohmann::json& c : cases) {
    const std::vector<int32_t> ids = t.encode(c["text"].get<std::string>());
    wrong += ids != c["ids"].get<std::vector<int32_t>>();
    if (c.contains("decoded")) wrong += t.decode(ids) != c["decoded"].get<std::string>();
  }
  return wrong;
}

}  // namespace ltrain::data::test
