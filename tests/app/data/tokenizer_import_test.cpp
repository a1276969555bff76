// ltrain tokenizer import: a tiktoken rank file as a tokenizer.json. The oracle is tiktoken:
// tests/golden/tokenizers/tiktoken-*.cases.jsonl, written by scripts/compare/data/compare_tiktoken.py.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"
#include "tests/support/tokenizer_files.h"

using namespace ltrain::test;
using Catch::Matchers::Contains;

namespace {
const std::string kRanks = LTRAIN_SOURCE_DIR "/tests/golden/small.tiktoken ";
const std::string kTiktokenCases = kTokenizerFiles + "tiktoken-";
constexpr int kRankCount = 286;
}  // namespace

TEST_CASE("tokenizer import: a rank file has tiktoken's ids under each pattern, and its special tokens") {
  TempRun t;
  struct Case {
    std::string label, arguments;
    int eos, ids;
  };
  for (const Case& c :
       {Case{"gpt2", "gpt2", 0, 1}, Case{"cl100k", "cl100k", 1, 21}, Case{"llama3", "llama3", 1, 256},
        Case{"qwen2", "qwen2", 0, 3}, Case{"o200k", "o200k", 1, 21},
        Case{"own",
             "'\\p{L}+|\\p{N}{1,3}|[^\\p{L}\\p{N}]+?' --special-tokens '<end>' '<begin>' --eos-token '<end>' "
             "--bos-token '<begin>'",
             0, 2}}) {
    const std::string folder = "made-" + c.label;
    Outcome o = t.sh("tokenizer import " + kRanks + folder + " --pattern " + c.arguments);
    INFO(c.label << "\n" << o.text);
    REQUIRE(o.code == 0);
    CHECK_THAT(o.text,
               Contains(folder + ": tokenizer.json of " + std::to_string(kRankCount + c.ids) + " ids"));
    o = t.sh("tokenize --tokenizer " + folder + " --cases " + kTiktokenCases + c.label + ".cases.jsonl");
    INFO(o.text);
    CHECK(o.code == 0);
    CHECK_THAT(o.text, Contains("150 cases agree"));
    o = t.sh("data build --input text.txt --output out --force --quiet --tokenizer " + folder);
    INFO(o.text);
    CHECK(o.code == 0);
    CHECK(nlohmann::json::parse(read_file(t.folder() + "/out.json"))["eot"] == kRankCount + c.eos);
  }
  // The token that begins a text is the post-processor's, and data have it when it is asked for.
  const std::string plain = t.sh("tokenize --tokenizer made-llama3 Hi").text;
  CHECK(t.sh("tokenize --tokenizer made-llama3 --special-tokens Hi").text ==
        std::to_string(kRankCount) + " " + plain);
  CHECK(t.sh("data build --input text.txt --output out --force --quiet --prepend-bos --tokenizer made-own")
            .code == 0);
  CHECK(nlohmann::json::parse(read_file(t.folder() + "/out.json"))["bos"] == kRankCount + 1);
  CHECK(t.sh("data build --input text.txt --output out --force --prepend-bos --tokenizer made-gpt2").code ==
        64);
  // The patterns are not the same, and neither are their ids.
  CHECK(t.sh("tokenize --tokenizer made-qwen2 --cases " + kTiktokenCases + "gpt2.cases.jsonl").code == 65);
  CHECK(t.sh("tokenize --tokenizer made-gpt2 --cases " + kTiktokenCases + "o200k.cases.jsonl").code == 65);
}

TEST_CASE(
    "tokenizer import: what is no rank file, pattern or special token is refused, and nothing is left") {
  TempRun t;
  const std::string text =
      "awk 'BEGIN { while (i++ < 700) printf \"YWFh\"; print \" 286\" }' > long && cat " + kRanks + "long > ";
  REQUIRE(t.shell(text + "long.tiktoken && printf 'YQ== 0\\nYg== x\\n' > bad.tiktoken").code == 0);
  struct Case {
    std::string arguments, text;
    int code;
  };
  for (const Case& c : {
           Case{kRanks + "out --pattern gpt5",
                "pattern gpt5: not known; gpt2, cl100k, llama3, qwen2, o200k or a", 64},
           Case{kRanks + "out --pattern '(a'", "(a", 65},
           Case{kRanks + "out --pattern '^a$'", "^", 65},
           Case{kRanks + "out", "--pattern", 64},
           Case{kRanks + "out --pattern gpt2 --eos-token '<no>'",
                "eos token <no>: is none of the special tokens", 64},
           Case{kRanks + "out --pattern gpt2 --special-tokens a",
                "is a token of the file already, or comes twice", 64},
           Case{kRanks + "out --pattern gpt2 --special-tokens '<x>' '<x>'", "or comes twice", 64},
           Case{kRanks + "out --pattern gpt2 --special-tokens ''", "has no text", 64},
           Case{kRanks + "out --pattern gpt2 --special-tokens \"$(printf '\\377')\"", "is not UTF-8", 64},
           Case{kRanks + "out --pattern \"$(printf '(\\377)')\"", "pattern", 65},
           Case{"bad.tiktoken out --pattern gpt2", "bad.tiktoken:2: rank \"x\" is not a whole number", 65},
           Case{"nowhere out --pattern gpt2", "nowhere: cannot be opened", 65},
           Case{"long.tiktoken out --pattern gpt2", "the token of rank 286 has 2100 bytes; at most 512", 65},
       }) {
    const Outcome o = t.sh("tokenizer import " + c.arguments);
    INFO(c.arguments << "\n" << o.text);
    CHECK(o.code == c.code);
    CHECK_THAT(o.text, Contains(c.text));
    CHECK_FALSE(std::filesystem::exists(t.folder() + "/out"));
  }
  REQUIRE(t.shell("mkdir full && touch full/file").code == 0);
  CHECK_THAT(t.sh("tokenizer import " + kRanks + "full --pattern gpt2").text,
             Contains("full: exists, and is not an empty folder"));
}
