// The commands through the binary.
#include <catch2/catch.hpp>

#include "base/json/json.h"
#include "tests/runtime/data/support.h"

using namespace ltrain::data::test;
using Catch::Matchers::Contains;
using nlohmann::json;

TEST_CASE("cli: data build, inspect and their JSON", "[data][cli]") {
  TempFolder f;
  write_file(f / "a.jsonl", "{\"body\": \"hello\"}\n{\"body\": \"wörld\"}\n{\"body\": \"again\"}\n");
  const std::string build =
      "data build --input " + (f / "a.jsonl") + " --output " + (f / "out") + " --json-key body ";
  const Ran built = run_ltrain(build + "--split 95,5 --json");
  INFO(built.err);
  REQUIRE(built.code == 0);
  const json j = json::parse(built.out);
  CHECK(j["outputs"].size() == 2);
  CHECK(j["outputs"][0]["prefix"] == f / "out-train");
  CHECK(j["outputs"][1]["documents"] == 1);
  CHECK(j["input_bytes"] == read_file(f / "a.jsonl").size());

  const Ran seen = run_ltrain("data inspect " + (f / "out-val") + " --verify --json");
  REQUIRE(seen.code == 0);
  const json v = json::parse(seen.out);
  CHECK(v["tokens"] == 7);
  CHECK(v["max_token"] == 256);
  CHECK(v["verified"] == true);
  CHECK(v["document"]["text"] == "wörld<|endoftext|>");
  CHECK(v["lengths"][0] == json({{"from", 4}, {"documents", 1}}));
  const Ran plain = run_ltrain("data inspect " + (f / "out-train") + " --document 1");
  CHECK(plain.code == 0);
  CHECK_THAT(plain.out,
             Contains("tokens     12 (u16") && Contains("document 1, 6 tokens:\nagain<|endoftext|>"));
  CHECK(plain.out.find('\x1b') == std::string::npos);

  const Ran again = run_ltrain(build + "--split 95,5");
  CHECK(again.code == 65);
  CHECK(again.out.empty());
  CHECK_THAT(again.err, Contains("out-train.bin: exists") && Contains("--force"));
  CHECK(run_ltrain(build + "--split 95,5 --force -q --no-append-eot").code == 0);
  CHECK(json::parse(run_ltrain("data inspect " + (f / "out-val") + " --json").out)["tokens"] == 6);
}

TEST_CASE("cli: data build with --dry-run writes nothing", "[data][cli]") {
  TempFolder f;
  write_file(f / "in/a.txt", "hello");
  write_file(f / "in/b.md", "hello");
  const Ran r = run_ltrain("data build --input " + (f / "in") + " --output " + (f / "out") +
                           " --exclude '*.md' --dry-run");
  CHECK(r.code == 0);
  CHECK_THAT(r.out, Contains("would read " + (f / "in/a.txt")) && !Contains("b.md") &&
                        Contains("would write " + (f / "out")));
  CHECK(run_ltrain("data inspect " + (f / "out")).code == 65);
}

TEST_CASE("cli: data inspect finds damage that only reading shows", "[data][cli]") {
  TempFolder f;
  write_file(f / "a.txt", std::string(1000, 'x'));
  REQUIRE(run_ltrain("data build --input " + (f / "a.txt") + " --output " + (f / "out")).code == 0);
  std::string bin = read_file(f / "out.bin");
  bin[500] ^= 1;
  write_file(f / "out.bin", bin);
  CHECK(run_ltrain("data inspect " + (f / "out")).code == 0);
  const Ran r = run_ltrain("data inspect " + (f / "out") + " --verify");
  CHECK(r.code == 65);
  CHECK_THAT(r.err, Contains("out.bin: has hash"));
}

TEST_CASE("cli: data inspect refuses the wrong vocabulary", "[data][cli]") {
  TempFolder f;
  write_file(f / "a.txt", "the other mother");
  const std::string gpt2 = " --tokenizer gpt2 --ranks " + kRanks;
  REQUIRE(run_ltrain("data build --input " + (f / "a.txt") + " --output " + (f / "out") + gpt2).code == 0);
  CHECK_THAT(run_ltrain("data inspect " + (f / "out") + gpt2).out, Contains("the other mother<|endoftext|>"));
  const Ran r = run_ltrain("data inspect " + (f / "out") + " --tokenizer byte");
  CHECK(r.code == 65);
  CHECK_THAT(r.err, Contains("built with tokenizer gpt2"));
  // Without its ranks: ids, and how to get text.
  CHECK_THAT(run_ltrain("data inspect " + (f / "out")).out,
             Contains("(ids; for text give --tokenizer gpt2 --ranks FILE)"));
}

TEST_CASE("cli: tokenize and back", "[data][cli]") {
  CHECK(run_ltrain("tokenize", "Hi\n").out == "72 105 10\n");
  CHECK(run_ltrain("tokenize --json", "Hi").out == "[72,105]\n");
  CHECK(run_ltrain("tokenize --count", "Hi").out == "2\n");
  CHECK(run_ltrain("tokenize", "").out == "\n");
  CHECK(run_ltrain("tokenize --decode", "[72, 105]\n256").out == "Hi<|endoftext|>");
  const std::string gpt2 = " --tokenizer gpt2 --ranks " + kRanks;
  CHECK(run_ltrain("tokenize" + gpt2, " the\xff").out == "261 " + run_ltrain("tokenize" + gpt2, "\xff").out);
  // More than one block of standard input.
  std::string text;
  for (int i = 0; i < 100000; ++i) text += i % 7 ? "the other " : "it's\n\n  aaaa";
  const Ran ids = run_ltrain("tokenize" + gpt2, text);
  CHECK((run_ltrain("tokenize --decode" + gpt2, ids.out).out == text));

  const Ran bad = run_ltrain("tokenize --decode", "72 257");
  CHECK(bad.code == 65);
  CHECK_THAT(bad.err, Contains("id 1: 257 is not a token id of byte (0 to 256)"));
  CHECK(run_ltrain("tokenize --decode", "72 x").code == 65);
  CHECK(run_ltrain("tokenize --tokenizer none", "").code == 64);
  CHECK(run_ltrain("data build --output x").code == 64);
  CHECK(run_ltrain("data").code == 64);
}
