// Merges learned from text. The oracle is BpeTrainer of Hugging Face's tokenizers:
// tests/golden/tokenizers/training.json, written by scripts/compare.sh tokenizer-training of training.jsonl.
#include "base/json/json.h"
#include "runtime/tokenizer/bpe_trainer.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "runtime/data/train_tokenizer.h"
#include "runtime/tokenizer/formats/tokenizer_json.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

const std::string kGolden = LTRAIN_SOURCE_DIR "/tests/golden/tokenizers/training";

TrainTokenizerOptions options() {
  TrainTokenizerOptions o;
  o.inputs = {kGolden + ".jsonl"};
  o.special_tokens = {"<|endoftext|>", "<pad>"};
  o.vocab_size = 700;
  return o;
}

json model_of(const TrainTokenizerOptions& o) {
  return json::parse(train_tokenizer(o).tokenizer_json)["model"];
}

bool is_golden(const json& model) {
  const json expected = json::parse(read_file(kGolden + ".json"));
  return model["vocab"] == expected["vocab"] && model["merges"] == expected["merges"];
}

std::string refusal(const std::function<void(TrainTokenizerOptions&)>& change) {
  TrainTokenizerOptions o = options();
  change(o);
  return error_of([&] { train_tokenizer(o); });
}

}  // namespace

TEST_CASE("a tokenizer learns what BpeTrainer learns, on any number of threads", "[data][tokenizer]") {
  REQUIRE(json::parse(read_file(kGolden + ".json"))["merges"].size() > 400);
  for (const int workers : {1, 3})
    for (const int64_t chunk : {int64_t{1000}, int64_t{1} << 20}) {
      TrainTokenizerOptions o = options();
      o.workers = workers;
      o.chunk_bytes = chunk;
      CHECK(is_golden(model_of(o)));
    }
  // Each option counts.
  for (const auto& change : std::vector<std::function<void(TrainTokenizerOptions&)>>{
           [](auto& o) { o.pattern = "gpt2"; }, [](auto& o) { o.vocab_size = 699; },
           [](auto& o) { o.min_frequency = 8; }, [](auto& o) { o.special_tokens.pop_back(); }}) {
    TrainTokenizerOptions o = options();
    change(o);
    CHECK_FALSE(is_golden(model_of(o)));
  }
}

TEST_CASE("what a tokenizer learned is read, ends documents and gives the text back", "[data][tokenizer]") {
  TempFolder f;
  TrainTokenizerOptions o = options();
  o.bos_token = "<pad>";
  const TrainedTokenizer t = train_tokenizer(o);
  CHECK(t.ids == 700);
  write_file(f / "tokenizer.json", t.tokenizer_json);
  write_file(f / "tokenizer_config.json", t.tokenizer_config_json);
  const auto tokenizer = make_huggingface_tokenizer(f.path());
  CHECK(tokenizer->eot() == 0);
  CHECK(tokenizer->bos() == 1);
  const std::string text = "First Citizen: \xff\xc3\xa9 1234\n\n  --------<|endoftext|>";
  CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  CHECK(tokenizer->encode(text).back() == 0);
}

TEST_CASE("a tokenizer's table of pieces is bounded, and says what it left out", "[data][tokenizer]") {
  TrainTokenizerOptions o = options();
  CHECK(train_tokenizer(o).left_out == 0);
  o.most_bytes = 60000;
  o.chunk_bytes = 2000;
  o.workers = 1;
  const TrainedTokenizer one = train_tokenizer(o);
  CHECK(one.left_out > 0);
  CHECK(one.merges > 50);
  o.workers = 3;
  const TrainedTokenizer three = train_tokenizer(o);
  CHECK(three.left_out == one.left_out);
  CHECK(three.tokenizer_json == one.tokenizer_json);
}

TEST_CASE("counts of pieces grow, add up and keep the most frequent", "[data][tokenizer]") {
  PieceCounts a, b;
  for (int i = 0; i < 5000; ++i) a.add(std::to_string(i % 3000), 1);
  for (int i = 0; i < 10; ++i) b.add(std::to_string(i), 5);
  b.add("", 1);
  a.add(b);
  CHECK(a.size() == 3001);
  int64_t sum = 0, seven = 0;
  a.each([&](std::string_view piece, int64_t count) {
    sum += count;
    if (piece == "7") seven = count;
  });
  CHECK(sum == 5051);
  CHECK(seven == 7);
  CHECK(a.keep(170000) == 1001);
  CHECK(a.size() == 2000);
  CHECK(a.keep(60000) == 1990);  // all but those that are there seven times
}

TEST_CASE("a tokenizer that cannot be learned is refused by name", "[data][tokenizer]") {
  CHECK(refusal([](auto&) {}).empty());
  CHECK_THAT(refusal([](auto& o) { o.vocab_size = 257; }), Contains("64: --vocab-size 257: 258 to 1048576"));
  CHECK_THAT(refusal([](auto& o) { o.min_frequency = 0; }), Contains("64: --min-frequency 0: at least 1"));
  CHECK_THAT(refusal([](auto& o) { o.workers = 300; }), Contains("64: --workers 300"));
  CHECK_THAT(refusal([](auto& o) { o.pattern = "gpt5"; }), Contains("64: pattern gpt5: not known"));
  CHECK_THAT(refusal([](auto& o) { o.pattern = "(a"; }), Contains("65: pattern: the pattern \"(a\""));
  CHECK_THAT(refusal([](auto& o) { o.special_tokens[1] = "a"; }), Contains("64: special token \"a\""));
  CHECK_THAT(refusal([](auto& o) { o.special_tokens[1] = o.special_tokens[0]; }), Contains("comes twice"));
  CHECK_THAT(refusal([](auto& o) { o.eos_token = "<no>"; }), Contains("64: eos token <no>: is none of the"));
  CHECK_THAT(refusal([](auto& o) { o.inputs = {"/nowhere"}; }), Contains("65: /nowhere: not found"));
  CHECK_THAT(refusal([](auto& o) { o.records.field = "none"; }), Contains("training.jsonl:1"));
}
