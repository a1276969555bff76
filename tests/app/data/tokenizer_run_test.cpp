// Runs on the tokens of a tokenizer.json: what is trained, resumed, evaluated, sampled and exported with it,
// and each disagreement of data, recipe and model.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"
#include "tests/support/tokenizer_files.h"

using namespace ltrain::test;
using Catch::Matchers::Contains;

namespace {

constexpr int kIds = 504;  // vocabulary of llama3.tokenizer.json

/// tok: a tokenizer's folder; own-train and own-val: documents of some words in its tokens.
void add_tokenizer_and_data(const TempRun& t) {
  const Outcome o =
      t.shell("mkdir tok && cp " + kTokenizerFiles +
              "llama3.tokenizer.json tok/tokenizer.json && printf '{\"eos_token\": \"<|end|>\"}' > "
              "tok/tokenizer_config.json && awk '{print \"{\\\"text\\\": \\\"\" $0 \"\\\"}\"}' text.txt > "
              "text.jsonl && " LTRAIN_BINARY
              " data build --input text.jsonl --output own --split 90,10 --tokenizer tok --quiet");
  INFO(o.text);
  REQUIRE(o.code == 0);
}

const std::string kOwnData = "run tiny.yaml data.train=[own-train] data.eval=[own-val] ";
const std::string kOwn =
    kOwnData + "data.tokenizer.kind=huggingface data.tokenizer.path=tok model.vocab_size=640 ";

}  // namespace

TEST_CASE("a run on tokens of a tokenizer.json is resumed, evaluated, sampled and exported with it") {
  TempRun t;
  add_tokenizer_and_data(t);
  const std::string run = kOwn + "data.reset_attention_mask=true ";
  REQUIRE(t.sh(run + "--steps 4").code == 0);
  Outcome o = t.sh(run);
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK_THAT(o.text, Contains("resuming from run/checkpoints/step-00000004"));
  REQUIRE(t.sh(run + "output_dir=whole").code == 0);
  CHECK(t.metric("lm_loss") == t.metric("lm_loss", "whole"));
  // Documents end where the tokenizer's end token is: without that they are one.
  REQUIRE(t.sh(kOwn + "output_dir=joined").code == 0);
  CHECK(t.metric("lm_loss", "joined") != t.metric("lm_loss", "whole"));
  CHECK_THAT(t.sh("checkpoint show run").text, Contains("tokenizer huggingface"));

  // The model has rows that stand for no token: none of them is drawn, however even the odds.
  const std::string generate = "generate run --tokens 60 --ignore-end --temperature 100 --json ";
  const auto sample = [&](const std::string& arguments) {
    const Outcome made = t.sh(generate + arguments + " 2>/dev/null");
    INFO(made.text);
    REQUIRE(made.code == 0);
    return nlohmann::json::parse(made.text);
  };
  const auto made = sample("--prompt 'line 1'");
  std::string ids;
  for (const int id : made["tokens"].get<std::vector<int>>()) {
    CHECK(id < kIds);
    ids += " " + std::to_string(id);
  }
  CHECK(made["tokens"].size() == 60);
  // Every byte is kept as text, but not in JSON.
  CHECK(t.sh("generate run --tokens 60 --ignore-end --temperature 100 --prompt 'line 1' 2>/dev/null").text ==
        "line 1" + t.sh("tokenize --tokenizer tok --decode" + ids).text);
  CHECK(sample("").at("tokens").size() == 60);  // from the start of a document

  // The tokenizer has moved; another one is not taken in its place.
  REQUIRE(t.shell("mv tok moved").code == 0);
  o = t.sh(generate);
  CHECK(o.code == 65);
  CHECK_THAT(o.text, Contains("tok: cannot be opened"));
  CHECK(sample("--prompt 'line 1' --tokenizer moved") == made);
  o = t.sh(generate + "--tokenizer " + kTokenizerFiles + "gpt2.tokenizer.json");
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("gpt2.tokenizer.json: is a huggingface tokenizer of hash ") &&
                         Contains("was trained on tokens of huggingface (hash "));
  REQUIRE(t.shell("mv moved tok").code == 0);

  CHECK(t.sh("eval run --samples 4").code == 0);
  o = t.sh("eval run --data text-val");
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("text-val is of tokenizer byte"));

  // A folder brings its tokenizer along.
  o = t.sh("export run hf --dtype fp32");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK(read_file(t.folder() + "/hf/tokenizer.json") == read_file(t.folder() + "/tok/tokenizer.json"));
  const std::string from = "run tiny.yaml ~model model.from=hf data.seq_length=32 output_dir=from ";
  o = t.sh(from);
  INFO(o.text);
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("data.tokenizer.kind (of model.from) = huggingface: the tokens of text-train "
                              "are of tokenizer byte"));
  o = t.sh(from + "data.train=[own-train] data.eval=[own-val] train.train_steps=1");
  INFO(o.text);
  CHECK(o.code == 0);
  // The recipe's own tokenizer goes first.
  CHECK(t.sh(from + "data.tokenizer.kind=byte train.train_steps=1 output_dir=bytes").code == 0);
  CHECK(t.sh("generate hf --prompt 'line 1' --tokens 5").code == 0);
  CHECK(t.sh("eval hf --seq-length 32 --samples 4 --data own-val").code == 0);
  o = t.sh("eval hf --seq-length 32 --samples 4 --data text-val");
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("text-val is of tokenizer byte") && Contains("of huggingface (hash "));
}

TEST_CASE(
    "data, recipe and model that disagree over a tokenizer.json are refused before anything is started") {
  TempRun t;
  add_tokenizer_and_data(t);
  const std::string kind = kOwnData + "data.tokenizer.kind=huggingface ";
  struct Case {
    std::string arguments, text;
    int code;
  };
  for (const Case& c : {
           Case{kOwnData + "model.vocab_size=640",
                "data.tokenizer.kind = byte (default): the tokens of own-train are of tokenizer huggingface",
                64},
           Case{kind + "model.vocab_size=640",
                "data.tokenizer.kind = huggingface: needs data.tokenizer.path: a tokenizer.json, ", 64},
           Case{kind + "data.tokenizer.path=tok ~model.vocab_size",
                "model.vocab_size = 0 (default): must be given with data.tokenizer.kind: huggingface", 64},
           Case{kind + "data.tokenizer.path=tok model.vocab_size=503",
                "model.vocab_size = 503: the tokenizer tok has token ids up to 503; nearest valid value: 504",
                64},
           Case{kind + "data.tokenizer.path=nowhere model.vocab_size=640", "nowhere: cannot be opened", 65},
           Case{kind + "model.vocab_size=640 data.tokenizer.path=" + kTokenizerFiles + "qwen2.tokenizer.json",
                "is a huggingface tokenizer of 404 ids and hash ", 64},
           Case{kOwn + "data.tokenizer.eod=3", "data.tokenizer.eod = 3: the sidecar of own-train says ", 64},
           Case{"run tiny.yaml data.tokenizer.kind=huggingface data.tokenizer.path=tok model.vocab_size=640",
                "data.tokenizer.kind = huggingface: the tokens of text-train are of tokenizer byte", 64},
       }) {
    const Outcome o = t.sh(c.arguments);
    INFO(c.arguments << "\n" << o.text);
    CHECK(o.code == c.code);
    CHECK_THAT(o.text, Contains(c.text));
    CHECK_FALSE(std::filesystem::exists(t.folder() + "/run"));
  }
  // Data without a sidecar end documents with the tokenizer's token, if it has one.
  REQUIRE(t.shell("rm own-train.json own-val.json").code == 0);
  const std::string packed = kOwn + "train.train_steps=1 data.reset_attention_mask=true ";
  CHECK(t.sh(packed).code == 0);
  REQUIRE(t.shell("rm tok/tokenizer_config.json").code == 0);
  Outcome o = t.sh(packed + "output_dir=none");
  INFO(o.text);
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("needs the token that ends documents: own-train has no sidecar that says it, "
                              "and no tokenizer_config.json beside tok says eos_token"));
  CHECK(t.sh(packed + "output_dir=given data.tokenizer.eod=500").code == 0);
}
