// ltrain tokenize, and data built with a tokenizer.json.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"
#include "tests/support/tokenizer_files.h"

using namespace ltrain::test;
using Catch::Matchers::Contains;
using Catch::Matchers::Equals;

TEST_CASE("tokenize: arguments, standard input, and back") {
  TempRun t;
  const std::string llama3 = "tokenize --tokenizer " + kTokenizerFiles + "llama3.tokenizer.json ";
  const std::string ids = t.sh(llama3 + "'the first'").text;
  CHECK(t.shell("printf 'the first' | " LTRAIN_BINARY " " + llama3).text == ids);
  CHECK(t.sh(llama3 + "--decode " + ids).text == "the first\n");
  CHECK(t.shell("printf 'the first' | " LTRAIN_BINARY " " + llama3 + "| " LTRAIN_BINARY " " + llama3 +
                "--decode")
            .text == "the first");
  CHECK(t.sh("tokenize 'Hi' 'a b' --json").text == "[72,105]\n[97,32,98]\n");
  CHECK(t.sh("tokenize 'Hi' 'a b' --count").text == "2\n3\n");
  // The post-processor's token stands before the text, of arguments and of standard input.
  const std::string with = t.sh(llama3 + "--special-tokens 'the first'").text;
  CHECK(with.size() > ids.size());
  CHECK_THAT(with, Catch::Matchers::EndsWith(" " + ids));
  CHECK(t.shell("printf 'the first' | " LTRAIN_BINARY " " + llama3 + "--special-tokens").text == with);
  // The first id of a text may be shown otherwise than the next ones.
  const std::string metaspace = "tokenize --tokenizer " + kTokenizerFiles + "metaspace-first.tokenizer.json ";
  CHECK(t.sh(metaspace + "--decode " + t.sh(metaspace + "'the the'").text).text == "the the\n");

  Outcome o = t.sh(llama3 + "--decode 7 90000");
  CHECK(o.code == 65);
  CHECK_THAT(o.text, Contains("arguments, id 1: 90000 is not a token id of huggingface"));
  o = t.sh("tokenize --tokenizer nowhere/tokenizer.json x");
  CHECK(o.code == 65);
  CHECK_THAT(o.text, Contains("nowhere/tokenizer.json: cannot be opened"));
  o = t.sh("tokenize --tokenizer gpt5 x");
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("tokenizer gpt5: expected byte, gpt2, huggingface, or the path"));
}

TEST_CASE("tokenize: cases of a file, up to the first that differs") {
  TempRun t;
  for (const char* name : {"gpt2", "llama2"}) {
    const std::string file = kTokenizerFiles + name + ".cases.jsonl";
    const std::string command = "tokenize --tokenizer " + kTokenizerFiles + name + ".tokenizer.json --cases ";
    Outcome o = t.sh(command + file);
    INFO(o.text);
    CHECK(o.code == 0);
    CHECK_THAT(o.text, Equals("150 cases agree with " + file + "\n"));
    // One id more in line 3, and the last line's end is missing.
    REQUIRE(t.shell("sed '3s/\"ids\": \\[/\"ids\": [0, /' " + file + " | head -c -1 > wrong.jsonl").code ==
            0);
    o = t.sh(command + "wrong.jsonl");
    INFO(o.text);
    CHECK(o.code == 65);
    CHECK_THAT(o.text, Contains("wrong.jsonl:3: text ") && Contains("differs at id 0: the file has "));
  }
  const auto refused = [&](const std::string& line) {
    t.shell("printf '%s\\n' '" + line + "' > one.jsonl");
    const Outcome o = t.sh("tokenize --cases one.jsonl");
    CHECK(o.code == 65);
    return o.text;
  };
  CHECK_THAT(refused(R"({"text": "a", "ids": [98]})"),
             Contains("one.jsonl:1") && Contains("has 98, byte gives 97"));
  CHECK_THAT(refused(R"({"text": "a", "ids": [97, 97]})"),
             Contains("differs at id 1") && Contains("gives (end)"));
  CHECK_THAT(refused(R"({"text": "a", "ids": [97], "decoded": "b"})"), Contains("has \"b\" for them"));
  CHECK_THAT(refused(R"({"text": "a"})"), Contains("a case is an object with"));
  CHECK_THAT(refused(""), Contains("holds no case"));
}

TEST_CASE("data build: a tokenizer.json, with the tokens that begin and end documents") {
  TempRun t;
  REQUIRE(t.shell("mkdir tok && cp " + kTokenizerFiles +
                  "llama3.tokenizer.json tok/tokenizer.json && printf '%s\\n' '{\"text\": \"the first\"}' "
                  "'{\"text\": \"second\"}' > two.jsonl")
              .code == 0);
  const std::string build = "data build --input two.jsonl --force --quiet --tokenizer tok --output out ";
  Outcome o = t.sh(build);
  INFO(o.text);
  CHECK(o.code == 64);  // nothing says what ends a document
  CHECK_THAT(o.text, Contains("which token ends a document?") && Contains("--eos-token TOKEN"));
  CHECK(t.sh(build + "--no-append-eot").code == 0);
  CHECK_THAT(t.sh(build + "--eos-token '<no>'").text, Contains("eos_token \"<no>\" is no token"));
  CHECK_THAT(t.sh(build + "--eos-token '<|end|>' --prepend-bos").text,
             Contains("which token begins a document?"));

  REQUIRE(
      t.shell(R"(printf '{"bos_token": "<s>", "eos_token": "<|end|>"}' > tok/tokenizer_config.json)").code ==
      0);
  o = t.sh(build + "--prepend-bos");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const auto sidecar = nlohmann::json::parse(read_file(t.folder() + "/out.json"));
  CHECK(sidecar["tokenizer"] == "huggingface");
  o = t.sh("data inspect out --document 1 --json --tokenizer tok");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const auto shown = nlohmann::json::parse(o.text);
  const auto ids = shown["document"]["tokens"].get<std::vector<int>>();
  CHECK(ids.front() == sidecar["bos"]);
  CHECK(ids.back() == sidecar["eot"]);
  CHECK(shown["document"]["text"] == "<s>second<|end|>");
  CHECK(!sidecar.contains("split_special_tokens"));
  CHECK(shown["split_special_tokens"] == false);
  // A special token in the text is text under --split-special-tokens, here and in `ltrain tokenize`.
  REQUIRE(t.shell("printf 'a<|end|>b' > mark.txt").code == 0);
  const auto tokens_of_mark = [&](const std::string& option) {
    REQUIRE(
        t.sh("data build --input mark.txt --force --quiet --tokenizer tok --output mark " + option).code ==
        0);
    const Outcome inspected = t.sh("data inspect mark --json --tokenizer tok");
    INFO(inspected.text);
    REQUIRE(inspected.code == 0);
    return nlohmann::json::parse(inspected.text);
  };
  const auto found = tokens_of_mark(""), split = tokens_of_mark("--split-special-tokens");
  CHECK(found["document"]["tokens"].size() == 4);
  CHECK(split["document"]["tokens"].size() > 6);
  CHECK(found["document"]["text"] == "a<|end|>b<|end|>");
  CHECK(split["document"]["text"] == found["document"]["text"]);
  CHECK(split["split_special_tokens"] == true);
  CHECK(split["tokenizer_hash"] == found["tokenizer_hash"]);
  std::vector<int> text_ids = split["document"]["tokens"];
  text_ids.pop_back();
  CHECK(t.sh("tokenize --tokenizer tok --json --split-special-tokens 'a<|end|>b'").text ==
        nlohmann::json(text_ids).dump() + "\n");
  // Another tokenizer is not taken for this one, and a run under the recipe's tokenizer is refused.
  o = t.sh("data inspect out --tokenizer " + kTokenizerFiles + "gpt2.tokenizer.json");
  CHECK(o.code == 65);
  CHECK_THAT(o.text, Contains("built with tokenizer huggingface of hash"));
  o = t.sh("run tiny.yaml data.train=[out] data.eval=[] train.eval_interval=0 model.vocab_size=600");
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("the tokens of out are of tokenizer huggingface"));
}
