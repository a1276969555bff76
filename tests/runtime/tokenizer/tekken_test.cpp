// Mistral's tekken.json: ids of mistral-common, and what is refused.
#include "runtime/tokenizer/formats/tekken.h"
#include "base/json/json.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "base/error.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

const std::string kTekken = LTRAIN_SOURCE_DIR "/tests/golden/tokenizers/small-tekken.json";

std::string tekken_refusal(const std::function<void(json&)>& change) {
  json j = json::parse(read_file(kTekken));
  change(j);
  return error_of([&] { read_tekken(j.dump(), "t.json"); });
}

}  // namespace

TEST_CASE("tekken.json: ids and text of mistral-common", "[data][tokenizer]") {
  const auto t = make_huggingface_tokenizer(kTekken);
  std::ifstream file(LTRAIN_SOURCE_DIR "/tests/golden/tokenizers/small-tekken.cases.jsonl");
  int cases = 0, wrong = 0, shifted = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const json c = json::parse(line);
    const std::vector<int32_t> want = c["ids"];
    std::vector<int32_t> got = t->encode(c["text"].get<std::string>());
    wrong += got != want;
    if (c.contains("decoded")) wrong += t->decode(got) != c["decoded"].get<std::string>();
    for (int32_t& id : got) ++id;
    shifted += got != want;
  }
  CHECK(cases == 150);
  CHECK(wrong == 0);
  CHECK(shifted > 140);  // the check can fail
  // Special tokens have the first ids, and are text where they stand in it.
  CHECK(t->eot() == t->find("</s>"));
  CHECK(t->eot() == 2);
  CHECK(t->bos() == 1);
  CHECK(t->find("<SPECIAL_29>") == 29);
  CHECK(t->encode("</s>").size() > 1);
  t->set_split_special_tokens(false);
  CHECK(t->encode("</s>").size() > 1);
  CHECK(t->clone()->encode("a</s>") == t->encode("a</s>"));
  CHECK(t->text_bytes(2) == 0);
  CHECK(t->text_bytes(30 + 'a') == 1);
  CHECK(t->before_text() == std::vector<int32_t>{1});
  const json j = json::parse(read_file(kTekken));
  CHECK(t->vocab_size() == j["config"]["default_vocab_size"]);
  // A cut between words changes no id.
  const std::string text = "the first, the second  and then 12 more";
  const int64_t cut = t->safe_cut(text);
  REQUIRE(cut > 0);
  auto parts = t->encode(text.substr(0, static_cast<size_t>(cut)));
  const auto rest = t->encode(text.substr(static_cast<size_t>(cut)));
  parts.insert(parts.end(), rest.begin(), rest.end());
  CHECK(parts == t->encode(text));
}

TEST_CASE("tekken.json: its own special tokens, and what is damaged or not known", "[data][tokenizer]") {
  CHECK(tekken_refusal([](json&) {}).empty());
  json own = json::parse(read_file(kTekken));
  own["special_tokens"] = {{{"rank", 0}, {"token_str", "<s>"}, {"is_control", true}},
                           {{"rank", 1}, {"token_str", "[X]"}, {"is_control", false}}};
  own["image"] = {{"image_patch_size", 16}};
  const HuggingfaceTokenizer t(read_tekken(own.dump(), "t.json"));
  CHECK(t.find("[X]") == 1);
  CHECK(t.find("<SPECIAL_2>") == 2);
  CHECK(t.bos() == 0);
  CHECK(t.eot() == -1);
  CHECK_THAT(tekken_refusal([](json& j) { j["surprise"] = 1; }), Contains("key \"surprise\": not known"));
  CHECK_THAT(tekken_refusal([](json& j) { j["config"]["surprise"] = 1; }),
             Contains("t.json.config: key \"surprise\""));
  CHECK_THAT(tekken_refusal([](json& j) { j["config"].erase("pattern"); }), Contains("pattern"));
  CHECK_THAT(tekken_refusal([](json& j) { j["config"]["default_vocab_size"] = 100; }),
             Contains("default_vocab_size"));
  CHECK_THAT(tekken_refusal([](json& j) { j["config"]["default_vocab_size"] = 100000; }),
             Contains("expected at least the 99970 that config.default_vocab_size leaves"));
  CHECK_THAT(tekken_refusal([](json& j) { j["config"]["default_num_special_tokens"] = 3; }),
             Contains("20 special tokens"));
  CHECK_THAT(tekken_refusal([](json& j) { j["vocab"][270]["rank"] = 271; }),
             Contains("t.json.vocab[270].rank: 271"));
  CHECK_THAT(tekken_refusal([](json& j) { j["vocab"][270]["token_bytes"] = "!"; }),
             Contains("is not base64"));
  CHECK_THAT(tekken_refusal([](json& j) { j["vocab"][3]["token_bytes"] = j["vocab"][4]["token_bytes"]; }),
             Contains("t.json.vocab[3].token_bytes: expected the byte 3 alone"));
  CHECK_THAT(tekken_refusal([](json& j) { j["vocab"][270]["token_bytes"] = j["vocab"][271]["token_bytes"]; }),
             Contains("t.json.vocab[271].token_bytes: the token of another rank again"));
  CHECK_THAT(tekken_refusal([](json& j) { j["vocab"].erase(270); }), Contains("t.json.vocab[270].rank"));
}
