// Rank files, patterns and special tokens from outside become a tokenizer.json that is read, or an error.
// tests/app/data/tokenizer_import_test.cpp compares with tiktoken.
#include "runtime/tokenizer/formats/import_ranks.h"

#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "runtime/tokenizer/bpe_merges_file.h"
#include "runtime/tokenizer/formats/tokenizer_json.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;

TEST_CASE("import of ranks: random damage, patterns and special tokens are an error or harmless",
          "[data][tokenizer]") {
  const std::string good = read_file(LTRAIN_SOURCE_DIR "/tests/golden/small.tiktoken");
  const std::vector<std::string> patterns = {"gpt2", "llama3", "qwen2", "o200k", R"(\p{L}+|\s+|.)"};
  std::mt19937 rng(8);
  int refused = 0, taken = 0;
  for (int round = 0; round < 400; ++round) {
    std::string file = good;
    for (int k = static_cast<int>(rng() % 3); k > 0; --k) {
      const size_t at = rng() % file.size();
      if (rng() % 3 == 0)
        file.erase(at, rng() % 30);
      else
        file[at] = "A=+/ 019\n\r\xff"[rng() % 11];
    }
    RankImport how;
    how.pattern = patterns[rng() % patterns.size()];
    if (rng() % 3 == 0) {
      how.pattern += "|";
      for (int k = static_cast<int>(rng() % 12); k > 0; --k)
        how.pattern += R"(a\pL{}[]()?*+|^sd,1-)"[rng() % 21];
    }
    if (rng() % 2)
      for (int k = static_cast<int>(rng() % 3); k >= 0; --k) {
        how.special_tokens.emplace_back(rng() % 5, '<');
        how.special_tokens.back() += static_cast<char>(rng());
      }
    try {
      const auto imported = import_ranks(parse_ranks(file, "ranks"), how, "ranks");
      HuggingfaceTokenizer t(read_tokenizer_json(imported.tokenizer_json, "t"));
      const std::string text = "the other\u00e9  << 1111 \xff<|endoftext|>";
      CHECK(t.Tokenizer::decode(t.Tokenizer::encode(text)) == text);
      ++taken;
    } catch (const Error& e) {
      ++refused;
      if (e.code() != ExitCode::data && e.code() != ExitCode::usage) FAIL(e.what());
    }
  }
  CHECK(refused > 100);
  CHECK(taken > 50);
}
