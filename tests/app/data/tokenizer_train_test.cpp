// ltrain tokenizer train, and runs and data with what it makes and with a SentencePiece model.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"
#include "tests/support/tokenizer_files.h"

using namespace ltrain::test;
using Catch::Matchers::Contains;

TEST_CASE("tokenizer train: a folder that data build and runs take") {
  TempRun t;
  Outcome o =
      t.sh("tokenizer train made --input " + kTokenizerFiles + "training.jsonl --vocab-size 400 --quiet");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.text, Contains("made: tokenizer.json of 400 ids, 143 merges, of 0.1 MB of text in 1 files"));
  CHECK(
      t.sh("tokenize --tokenizer made --decode $(" LTRAIN_BINARY " tokenize --tokenizer made 'Hi there, é')")
          .text == "Hi there, é\n");
  CHECK(t.sh("data build --input text.txt --output own --tokenizer made --quiet").code == 0);
  CHECK(nlohmann::json::parse(read_file(t.folder() + "/own.json"))["eot"] == 0);
  o = t.sh(
      "run tiny.yaml data.train=[own] data.eval=[] train.eval_interval=0 data.tokenizer.kind=huggingface "
      "data.tokenizer.path=made model.vocab_size=400 --steps 2");
  INFO(o.text);
  CHECK(o.code == 0);
  // A second training refuses to overwrite the folder.
  o = t.sh("tokenizer train made --input text.txt --vocab-size 300");
  CHECK(o.code != 0);
  CHECK_THAT(o.text, Contains("made: exists, and is not an empty folder"));
  o = t.sh("tokenizer train few --input text.txt --vocab-size 100000 --min-frequency 3 --quiet");
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("ids, not 100000: no other pair of tokens is there 3 times"));
}

TEST_CASE("tokenizer train: what cannot be is refused, and nothing is left") {
  TempRun t;
  for (const auto& [arguments, text, code] : std::vector<std::tuple<std::string, std::string, int>>{
           {"--input text.txt --vocab-size 100", "--vocab-size 100: 257 to 1048576", 64},
           {"--input text.txt --pattern '^a'", "\"^\"", 65},
           {"--input nowhere", "nowhere: not found", 65},
           {"", "--input", 64},
       }) {
    const Outcome o = t.sh("tokenizer train out " + arguments);
    INFO(arguments << "\n" << o.text);
    CHECK(o.code == code);
    CHECK_THAT(o.text, Contains(text));
    CHECK_FALSE(std::filesystem::exists(t.folder() + "/out"));
  }
}

TEST_CASE("a SentencePiece model: data, runs, and a folder that has it alone") {
  TempRun t;
  for (const std::string name : {"bpe-bytes", "unigram-rules"}) {
    const Outcome o = t.sh("tokenize --tokenizer " + kTokenizerFiles + name + ".model --cases " +
                           kTokenizerFiles + name + ".cases.jsonl");
    INFO(o.text);
    CHECK(o.code == 0);
    CHECK_THAT(o.text, Contains("150 cases agree"));
  }
  REQUIRE(t.shell("mkdir sp && cp " + kTokenizerFiles + "bpe-bytes.model sp/tokenizer.model").code == 0);
  CHECK(t.sh("data build --input text.txt --output own --tokenizer sp --quiet").code == 0);
  const auto sidecar = nlohmann::json::parse(read_file(t.folder() + "/own.json"));
  CHECK(sidecar["eot"] == 2);
  CHECK(sidecar["tokenizer"] == "huggingface");
  const std::string run = "run tiny.yaml data.train=[own] data.eval=[] train.eval_interval=0 ";
  Outcome o =
      t.sh(run + "data.tokenizer.kind=huggingface data.tokenizer.path=sp model.vocab_size=700 --steps 2");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(t.sh("generate run --prompt Hi --tokens 4 --ignore-end").text, Contains("Hi"));
  // A folder brings it along.
  o = t.sh("export run hf --dtype fp32");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK(read_file(t.folder() + "/hf/tokenizer.model") == read_file(kTokenizerFiles + "bpe-bytes.model"));
  const std::string from =
      "run tiny.yaml ~model model.from=hf data.seq_length=32 data.eval=[] train.eval_interval=0 ";
  o = t.sh(from + "data.train=[own] train.train_steps=1 output_dir=from");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(t.sh(from + "output_dir=from2").text,
             Contains("data.tokenizer.kind (of model.from) = huggingface: the tokens of text-train are of "
                      "tokenizer byte"));
  CHECK_THAT(t.sh("generate hf --prompt Hi --tokens 4 --ignore-end").text, Contains("Hi"));
  o = t.sh(run + "data.tokenizer.kind=sentencepiece data.tokenizer.path=sp model.vocab_size=700");
  CHECK(o.code == 64);
  CHECK_THAT(o.text,
             Contains("data.tokenizer.kind = sentencepiece: must be one of byte, gpt2, huggingface; write"));
  // Llama-3's file of this name is of another kind.
  REQUIRE(t.shell("cp " LTRAIN_SOURCE_DIR "/tests/golden/small.tiktoken sp/tokenizer.model").code == 0);
  o = t.sh("tokenize --tokenizer sp Hi");
  CHECK(o.code == 65);
  CHECK_THAT(o.text, Contains("sp/tokenizer.model: is a tiktoken rank file, not a SentencePiece model"));
}
