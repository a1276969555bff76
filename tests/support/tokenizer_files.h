// Folder of tokenizers and of their libraries' answers, NAME.cases.jsonl.
#pragma once
#include <string>

namespace ltrain::test {

inline const std::string kTokenizerFiles = LTRAIN_SOURCE_DIR "/tests/golden/tokenizers/";

}  // namespace ltrain::test
