// `ltrain data inspect` of records and of token files.
#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("data inspect: types of fields, lengths in bytes and in tokens, and tokens with their text") {
  TempRun t;
  std::ofstream(t.folder() + "/rows.jsonl") << R"({"text": "abc", "id": 1, "tags": ["x"]})"
                                               "\n"
                                               R"({"text": "äb", "id": 0.5, "tags": []})"
                                               "\n"
                                               R"({"text": "0123456789", "id": null})"
                                               "\n"
                                               R"({"text": "", "id": true})"
                                               "\n";
  Outcome o = t.sh("data inspect rows.jsonl --json");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const auto seen = nlohmann::json::parse(o.text)["records"][0];
  CHECK(seen["fields"]["id"] == nlohmann::json({"integer", "null", "number", "true or false"}));
  CHECK(seen["fields"]["tags"] == nlohmann::json({"list", "list of text"}));
  CHECK(seen["lengths"] == nlohmann::json::parse(R"({"unit": "bytes of text", "shortest": 0, "longest": 10,
      "histogram": [{"from": 0, "records": 1}, {"from": 2, "records": 2}, {"from": 8, "records": 1}]})"));
  o = t.sh("data inspect rows.jsonl --tokenizer byte --tokens");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.text, Contains("id (integer or null or number or true or false)"));
  CHECK_THAT(o.text, Contains("  lengths    0 to 10 tokens a record"));
  CHECK_THAT(o.text, Contains("             2 - 3                   2 ##############################\n"
                              "             8 - 15                  1 ###############\n"));
  CHECK_THAT(o.text, Contains("tokens of record 1:\n97 \"a\"  98 \"b\"  99 \"c\"\n"
                              "tokens of record 2:\n195 \"\\xc3\"  164 \"\\xa4\"  98 \"b\"\n"));
  o = t.sh("data inspect text-train --document 0 --tokens");
  REQUIRE(o.code == 0);
  CHECK_THAT(o.text, Contains(" \"") && Contains("256 \"<|endoftext|>\""));
}

TEST_CASE("data inspect: an option of other inputs is refused, and not ignored") {
  TempRun t;
  const auto refused = [&](const std::string& arguments, const std::string& why) {
    const Outcome o = t.sh("data inspect " + arguments);
    INFO(o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains(why));
  };
  refused("text.txt --verify", "text.txt: is not a PREFIX of token files, and --verify is for them");
  refused("text.txt --document 1", "and --document is for them");
  refused("text.txt --tokens", "--tokens: files of text and records have no tokenizer; add --tokenizer");
  refused("text-train --all", "text-train: is a PREFIX of token files, which have no --all");
  refused("text-train --field text", "which have no --all, --field and --input-format");
  refused("text-train --input-format csv", "which have no --all, --field and --input-format");
}
