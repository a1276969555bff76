#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "base/json/json.h"
#include "runtime/tokenizer/formats/normalizer.h"
#include "runtime/tokenizer/formats/tokenizer_json.h"
#include "runtime/tokenizer/regex.h"
#include "tests/runtime/data/support.h"
#include "tests/runtime/tokenizer/golden_cases.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

const std::vector<std::string> kFiles = {"gpt2",   "llama3",          "qwen2",       "lowercase-added",
                                         "llama2", "metaspace-first", "added-inside"};

json golden_json(const std::string& name) {
  return json::parse(read_file(ltrain::test::kTokenizerFiles + name + ".tokenizer.json"));
}

std::unique_ptr<Tokenizer> made_of_json(const json& j) {
  return std::make_unique<HuggingfaceTokenizer>(read_tokenizer_json(j.dump(), "t.json"));
}

/// Error text for llama3's file after `change`.
std::string json_refusal(const std::function<void(json&)>& change, const std::string& name = "llama3") {
  json j = golden_json(name);
  change(j);
  return error_of([&] { read_tokenizer_json(j.dump(), "t.json"); });
}

}  // namespace

TEST_CASE("tokenizer.json: ids and text of Hugging Face's tokenizers", "[data][tokenizer]") {
  for (const std::string& name : kFiles) {
    INFO(name);
    const auto t = make_huggingface_tokenizer(ltrain::test::kTokenizerFiles + name + ".tokenizer.json");
    auto cases = cases_of(name);
    REQUIRE(cases.size() >= 150);
    CHECK(differences(*t, cases) == 0);
    CHECK(differences(*t, cases) == 0);  // from the cache
    CHECK(differences(*t->clone(), cases) == 0);
    cases[5]["ids"].push_back(0);
    CHECK(differences(*t, cases) == 1);  // the check can fail
  }
}

TEST_CASE("tokenizer.json: special tokens in text as text, as Hugging Face's tokenizers split them",
          "[data][tokenizer]") {
  for (const std::string name : {"llama3", "lowercase-added", "added-inside"}) {
    INFO(name);
    const auto t = make_huggingface_tokenizer(ltrain::test::kTokenizerFiles + name + ".tokenizer.json");
    const auto split_cases = cases_of(name + ".split"), cases = cases_of(name);
    REQUIRE(split_cases.size() >= 150);
    CHECK(differences(*t, split_cases) > 10);  // the default finds special tokens
    t->set_split_special_tokens(true);
    CHECK(differences(*t, split_cases) == 0);
    CHECK(differences(*t->clone(), split_cases) == 0);
    CHECK(differences(*t, cases) > 10);
    t->set_split_special_tokens(false);
    CHECK(differences(*t, cases) == 0);
  }
}

TEST_CASE("tokenizer.json: each part of it decides ids", "[data][tokenizer]") {
  const auto changed = [](const std::string& name, const std::function<void(json&)>& change) {
    json j = golden_json(name);
    change(j);
    CHECK(made_of_json(j)->hash() != made_of_json(golden_json(name))->hash());
    return differences(*made_of_json(j), cases_of(name));
  };
  CHECK(changed("qwen2", [](json& j) { j["normalizer"] = nullptr; }) > 0);
  CHECK(changed("llama3", [](json& j) { j["model"]["ignore_merges"] = false; }) > 0);
  CHECK(changed("llama3", [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }) >
        0);
  CHECK(changed("llama3", [](json& j) { j["added_tokens"].erase(j["added_tokens"].size() - 1); }) > 0);
  CHECK(changed("lowercase-added", [](json& j) { j["added_tokens"][1]["single_word"] = false; }) > 0);
  CHECK(changed("gpt2",
                [](json& j) { std::reverse(j["model"]["merges"].begin(), j["model"]["merges"].end()); }) > 0);
  CHECK(changed("llama2", [](json& j) { j["model"]["fuse_unk"] = false; }) ==
        0);  // bytes leave nothing unknown
  CHECK(changed("llama2", [](json& j) { j["model"]["byte_fallback"] = false; }) > 0);
  CHECK(changed("metaspace-first", [](json& j) { j["pre_tokenizer"]["prepend_scheme"] = "always"; }) > 0);
  CHECK(changed("llama2", [](json& j) { j["decoder"]["decoders"].erase(3); }) > 0);
}

TEST_CASE("tokenizer.json: what is not supported is refused by name", "[data][tokenizer]") {
  CHECK(json_refusal([](json&) {}).empty());
  CHECK_THAT(json_refusal([](json& j) { j["model"]["type"] = "Unigram"; }),
             Contains("65: t.json.model: type \"Unigram\" is not supported; models of type BPE are"));
  CHECK_THAT(json_refusal([](json& j) { j["model"]["dropout"] = 0.1; }),
             Contains("t.json.model.dropout: 0.1"));
  CHECK_THAT(json_refusal([](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }),
             Contains("end_of_word_suffix"));
  CHECK_THAT(json_refusal([](json& j) {
               j["truncation"] = {{"max_length", 8}};
             }),
             Contains("t.json.truncation"));
  CHECK_THAT(json_refusal([](json& j) { j["surprise"] = 1; }), Contains("key \"surprise\": not known"));
  CHECK_THAT(json_refusal([](json& j) { j["model"]["surprise"] = 1; }),
             Contains("t.json.model: key \"surprise\""));
  CHECK_THAT(json_refusal([](json& j) {
               j["normalizer"] = {{"type", "BertNormalizer"}};
             }),
             Contains("t.json.normalizer: type \"BertNormalizer\""));
  CHECK_THAT(
      json_refusal([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a\\b"; }),
      Contains("pretokenizers[0]: the pattern \"a\\b\": \"\\b\" at byte 1"));
  CHECK_THAT(json_refusal([](json& j) {
               j["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
             }),
             Contains("pretokenizers[2]: Digits after ByteLevel"));
  CHECK_THAT(json_refusal([](json& j) {
               j["model"]["merges"].push_back({"q", "zzz"});
             }),
             Contains("\"zzz\" is not in"));
  CHECK_THAT(json_refusal([](json& j) { j["model"]["vocab"]["new"] = 7; }), Contains("id 7 again"));
  CHECK_THAT(json_refusal([](json& j) { j["model"]["vocab"]["new"] = 1 << 30; }),
             Contains("not an id from 0 to"));
  CHECK_THAT(json_refusal([](json& j) { j["model"]["vocab"].erase("\u0100"); }),
             Contains("no token is the byte 0"));
  CHECK_THAT(json_refusal([](json& j) { j["model"]["byte_fallback"] = false, j["model"].erase("unk_token"); },
                          "llama2"),
             Contains("characters without a token would be lost"));
  CHECK_THAT(json_refusal([](json& j) { j["added_tokens"][0]["id"] = 90000; }),
             Contains("ids of added tokens follow"));
  CHECK_THAT(json_refusal([](json& j) { j["added_tokens"][1]["content"] = j["added_tokens"][0]["content"]; }),
             Contains("again; t.json.added_tokens[0] has it"));
  CHECK_THAT(json_refusal([](json& j) {
               j["post_processor"] = {{"type", "Other"}};
             }),
             Contains("t.json.post_processor"));
  CHECK_THAT(json_refusal([](json& j) {
               j["decoder"] = {{"type", "WordPiece"}};
             }),
             Contains("t.json.decoder"));
  CHECK_THAT(error_of([] { read_tokenizer_json("{", "t.json"); }), Contains("65: t.json: not JSON"));
  CHECK_THAT(error_of([] { make_huggingface_tokenizer("/nowhere"); }),
             Contains("/nowhere: cannot be opened"));
}

TEST_CASE("tokenizer.json: tokens around a text and at the end of documents", "[data][tokenizer]") {
  TempFolder f;
  write_file(f / "tokenizer.json", read_file(ltrain::test::kTokenizerFiles + "llama3.tokenizer.json"));
  const auto bare = make_huggingface_tokenizer(f.path());
  CHECK(bare->eot() == -1);
  CHECK(bare->bos() == -1);
  const int32_t begin = bare->find("<s>"), end = bare->find("<|end|>");
  REQUIRE((begin >= 0 && end >= 0 && begin != end));
  std::vector<int32_t> ids = bare->encode("x");
  bare->add_special_tokens(ids);
  CHECK(ids == std::vector<int32_t>{begin, bare->find("x")});
  CHECK(bare->encode("<|end|>") == std::vector<int32_t>{end});  // an added token is found in text

  write_file(f / "tokenizer_config.json",
             R"({"bos_token":{"content":"<s>"},"eos_token":"<|end|>","chat_template":"x"})");
  const auto named = make_huggingface_tokenizer(f.path());
  CHECK(named->bos() == begin);
  CHECK(named->eot() == end);
  CHECK(named->hash() == bare->hash());
  CHECK(make_huggingface_tokenizer(f.path(), {"", "<s>"})->eot() == begin);  // given values win
  CHECK_THAT(error_of([&] {
               make_huggingface_tokenizer(f.path(), {"", "<no>"});
             }),
             Contains("64: ") && Contains("\"<no>\" is no token"));
  write_file(f / "tokenizer_config.json", R"({"eos_token":"<no>"})");
  CHECK_THAT(error_of([&] { make_huggingface_tokenizer(f.path()); }),
             Contains("tokenizer_config.json: eos_token \"<no>\" is no token"));
}

TEST_CASE("tokenizer.json: cutting at a safe place changes no id", "[data][tokenizer]") {
  std::mt19937 rng(3);
  for (const std::string& name : kFiles) {
    INFO(name);
    const auto t = make_huggingface_tokenizer(ltrain::test::kTokenizerFiles + name + ".tokenizer.json");
    int cuts = 0;
    for (const json& c : cases_of(name)) {
      const std::string text = c["text"].get<std::string>() + " the end,  of " + c["text"].get<std::string>();
      const std::string_view view = text;
      const int64_t cut = t->safe_cut(view.substr(0, rng() % (text.size() + 1)));
      if (cut == 0) continue;
      auto ids = t->encode(view.substr(0, cut));
      t->encode(view.substr(cut), ids);
      REQUIRE(ids == t->encode(text));
      ++cuts;
    }
    // A token that takes spaces with it, a Prepend: no place is safe.
    const json j = golden_json(name);
    CHECK((cuts > 50) == (name != "llama2" && j.dump().find("\"rstrip\":true") == std::string::npos));
  }
}

TEST_CASE("tokenizer.json: any bytes are encoded, and come back from bytes", "[data][tokenizer]") {
  const auto t = make_huggingface_tokenizer(ltrain::test::kTokenizerFiles + "llama3.tokenizer.json");
  const auto sp = make_huggingface_tokenizer(ltrain::test::kTokenizerFiles + "llama2.tokenizer.json");
  std::mt19937 rng(4);
  for (int i = 0; i < 2000; ++i) {
    std::string noise(rng() % 60, '\0');
    for (char& c : noise) c = static_cast<char>(rng() % 3 ? rng() : "ab \n\xc3"[rng() % 5]);
    REQUIRE(t->decode(t->encode(noise)) == noise);
    REQUIRE(sp->decode(sp->encode(noise)) == noise);
  }
}

TEST_CASE("tokenizer.json: random damage is an error or harmless", "[data][tokenizer]") {
  std::mt19937 rng(5);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::string text = golden_json(kFiles[round % kFiles.size()]).dump();
    // The vocabulary is most of the file; the rest is where the damage is to be.
    const size_t from = rng() % 2 ? 0 : text.find("\"normalizer\"");
    for (int k = 1 + static_cast<int>(rng() % 3); k > 0; --k) {
      const size_t at = from + rng() % (text.size() - from);
      if (rng() % 3 == 0)
        text.erase(at, rng() % 20);
      else
        text[at] = "\"{}[]:,0aT\\\xff"[rng() % 12];
    }
    try {
      const HuggingfaceTokenizer tokenizer(read_tokenizer_json(text, "t"));
      auto copy = tokenizer.clone();
      copy->decode(copy->encode("the other\u00e9 <mask>  aaaa 1111 <|end|>"));
    } catch (const Error& e) {
      ++refused;
      if (e.code() != ExitCode::data) FAIL(e.what());
    }
  }
  CHECK(refused > 300);
}

TEST_CASE("tokenizer.json: a hostile normalizer or pattern costs bounded memory and time",
          "[data][tokenizer]") {
  std::vector<Normalizer::Step> steps;
  for (int i = 0; i < 20; ++i)
    steps.emplace_back(std::in_place_type<ReplaceStep>, Regex("a", "n"), std::string(100, 'a'));
  Normalizer grows(std::move(steps));
  std::string text(1000, 'a');
  CHECK_THAT(error_of([&] { grows.apply(text); }), Contains("65: the normalizer makes a text longer than"));
  Regex slow("(?:a+)+[bc]x", "p");
  Regex::Match m;
  CHECK_THAT(error_of([&] { slow.next(std::string(60, 'a') + "x", 0, m); }),
             Contains("65: p: the pattern \"(?:a+)+[bc]x\" gave up"));
}

TEST_CASE("regex: constructs mean what they mean to the engines they are written for", "[data][tokenizer]") {
  const auto whole = [](const std::string& pattern, const std::string& text) {
    Regex r(pattern, "p");
    Regex::Match m;
    return r.next(text, 0, m) && m.begin == 0 && m.end == text.size();
  };
  CHECK(whole("\\s", "\xc2\x85"));
  CHECK_FALSE(whole("\\s", "\xe1\xa0\x8e"));  // PCRE2's \s has U+180E, which is outside White_Space
  CHECK(whole("\\w", "\xcd\x85"));            // U+0345: Alphabetic, not in PCRE2's \w
  CHECK(whole("(?i:'s)", "'\xc5\xbf"));
  CHECK(whole("[^\\s\\p{L}]+",
              "12\xff"
              "3") == false);  // bytes that are not UTF-8 match nothing
  CHECK(whole("a{2,3}", "aaa"));
  CHECK(whole("\\x{e9}\\u00e9", "\xc3\xa9\xc3\xa9"));
  for (const char* bad : {"^a", "a$", "a{1,2}+", "[a[b]]", "[a&&b]", "\\h", "\\R", "(?P<a>b)", "(?x:a)",
                          "a{,2}", "\\p{L", "[a", "(a", "\\", "[]a]", "\\xg", "[\\W]"})
    CHECK_THAT(error_of([&] { Regex(bad, "p"); }), Contains("65: p: the pattern"));
}
