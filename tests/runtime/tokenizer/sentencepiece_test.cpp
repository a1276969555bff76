// SentencePiece models. The oracle is the sentencepiece library: tests/golden/tokenizers/*.model and their
// cases, written by scripts/compare/data/compare_sentencepiece.py.
#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "base/error.h"
#include "base/json/json.h"
#include "runtime/tokenizer/formats/sentencepiece_tokenizer.h"
#include "tests/runtime/data/support.h"
#include "tests/runtime/tokenizer/golden_cases.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

const std::vector<std::string> kModels = {"bpe-bytes", "bpe-symbols", "unigram-rules", "unigram-bytes"};

std::string golden_model(const std::string& name) {
  return read_file(ltrain::test::kTokenizerFiles + name + ".model");
}

std::unique_ptr<Tokenizer> made_of_model(const std::string& file) {
  return make_sentencepiece_tokenizer(file, "t.model");
}

// A message of Protocol Buffers. A later field of one number goes before an earlier one, in a message inside
// too, so that what is appended to a model changes it.
std::string varint(uint64_t v) {
  std::string s;
  for (; v >= 0x80; v >>= 7) s += static_cast<char>(v | 0x80);
  return s + static_cast<char>(v);
}
std::string number(int field, uint64_t v) { return varint(static_cast<uint64_t>(field) << 3) + varint(v); }
std::string bytes(int field, const std::string& v) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(v.size()) + v;
}
std::string real(int field, float v) {
  std::string s = varint(static_cast<uint64_t>(field) << 3 | 5) + std::string(4, '\0');
  std::memcpy(s.data() + s.size() - 4, &v, 4);
  return s;
}
std::string piece(const std::string& text, float score = 0, uint64_t type = 1) {
  return bytes(1, bytes(1, text) + real(2, score) + number(3, type));
}
std::string trainer(const std::string& fields) { return bytes(2, fields); }
std::string normalizer(const std::string& fields) { return bytes(3, fields); }
std::string charsmap(const std::vector<uint32_t>& units, const std::string& strings) {
  const auto size = static_cast<uint32_t>(units.size() * 4);
  return bytes_of(std::vector<uint32_t>{size}) + bytes_of(units) + strings;
}

/// A BPE model of few pieces.
const std::string kSmall = piece("<unk>", 0, 2) + piece("ab", -1) + piece("bc", -1) + piece("a", -9) +
                           piece("b", -9) + piece("c", -9) + trainer(number(3, 2)) +
                           normalizer(number(3, 0) + number(4, 0));

std::string model_refusal(const std::string& file) {
  return error_of([&] { made_of_model(file); });
}

}  // namespace

TEST_CASE("SentencePiece: ids and text of its library", "[data][tokenizer]") {
  for (const std::string& name : kModels) {
    INFO(name);
    const auto t = make_huggingface_tokenizer(ltrain::test::kTokenizerFiles + name + ".model");
    auto cases = cases_of(name);
    REQUIRE(cases.size() >= 150);
    CHECK(differences(*t, cases) == 0);
    CHECK(differences(*t, cases) == 0);  // from the cache
    CHECK(differences(*t->clone(), cases) == 0);
    cases[5]["ids"].push_back(0);
    CHECK(differences(*t, cases) == 1);  // the check can fail
    CHECK(t->bos() == t->find("<s>"));
    CHECK(t->eot() == t->find("</s>"));
    CHECK(t->eot() > 0);
  }
}

TEST_CASE("SentencePiece: each part of a model decides ids", "[data][tokenizer]") {
  const auto changed = [](const std::string& name, const std::string& appended) {
    const auto t = made_of_model(golden_model(name) + appended), before = made_of_model(golden_model(name));
    CHECK(t->hash() != before->hash());
    return differences(*t, cases_of(name));
  };
  CHECK(changed("bpe-bytes", number(99, 1)) == 0);  // without a meaning
  CHECK(changed("bpe-bytes", trainer(number(3, 1))) > 0);
  CHECK(changed("unigram-bytes", trainer(number(3, 2))) > 0);
  CHECK(changed("bpe-bytes", normalizer(number(3, 0))) > 0);
  CHECK(changed("unigram-bytes", normalizer(number(3, 1))) > 0);
  CHECK(changed("bpe-bytes", normalizer(number(4, 1))) > 0);
  CHECK(changed("unigram-rules", normalizer(number(4, 0))) > 0);
  CHECK(changed("unigram-rules", normalizer(bytes(2, ""))) > 0);
  CHECK(changed("bpe-symbols", normalizer(number(5, 0))) > 0);
  CHECK(changed("bpe-symbols", trainer(bytes(44, "?"))) > 0);
}

TEST_CASE("SentencePiece: merges go by score, the leftmost of equals first", "[data][tokenizer]") {
  const auto t = made_of_model(kSmall);
  CHECK(t->encode("abc") == std::vector<int32_t>{1, 5});
  CHECK(t->encode("babcb") == std::vector<int32_t>{4, 1, 5, 4});
  CHECK(t->encode("xyabz") == std::vector<int32_t>{0, 1, 0});  // a run of unknown characters is one
  CHECK(t->decode({1, 0, 5}) == "ab \xE2\x81\x87 c");
  CHECK(made_of_model(kSmall + piece("bcz", -0.5))->encode("abcz") == std::vector<int32_t>{1, 5, 0});
  // A character without a piece of its own is part of another piece.
  CHECK(made_of_model(kSmall + piece("cz", -0.5))->encode("abcz") == std::vector<int32_t>{1, 6});
}

TEST_CASE("SentencePiece: what is damaged or not supported is refused by name", "[data][tokenizer]") {
  CHECK(model_refusal(kSmall).empty());
  for (const auto& [file, text] : std::vector<std::pair<std::string, std::string>>{
           {"", "has no pieces"},
           {kSmall.substr(0, kSmall.size() - 1), "a field is longer than what it is in"},
           {kSmall + "\x0a", "ends inside a field"},
           {kSmall + "\x0b", "no type of a field"},
           {kSmall + std::string(11, '\xff'), "an integer of more than 64 bits"},
           {kSmall + number(1, 1), "a field of another type"},
           {kSmall + bytes(1, number(3, 9)), "no type of a piece"},
           {kSmall + trainer(number(3, 3)),
            "trainer_spec.model_type 3: not supported; UNIGRAM (1) and BPE (2) are"},
           {kSmall + trainer(number(24, 1)), "treat_whitespace_as_suffix: not supported"},
           {kSmall + bytes(5, bytes(2, "x")), "denormalizer_spec.precompiled_charsmap: not supported"},
           {kSmall + piece("ab"), "piece 6 \"ab\": again; piece 1 has this text"},
           {kSmall + piece(""), "piece 6 \"\": has no text"},
           {kSmall + piece(std::string(600, 'x')), "600 bytes; a piece has at most 512"},
           {kSmall + piece("q", NAN), "its score is no number"},
           {kSmall + piece("<u>", 0, 2), "is the unknown piece, and so is piece 0"},
           {kSmall + piece("q", 0, 5), "type UNUSED is not supported in a BPE model"},
           {kSmall + piece("<0x41>", 0, 6), "trainer_spec.byte_fallback is not set"},
           {kSmall + trainer(number(35, 1)), "byte_fallback is set, but no piece is <0x00>"},
           {kSmall + trainer(number(35, 1)) + piece("<0x4g>", 0, 6),
            "is of type BYTE, but not <0x00> to <0xFF>"},
           {piece("a"), "no piece is of type UNKNOWN"},
           {kSmall + normalizer(bytes(2, "abc")), "precompiled_charsmap: ends before its size"},
           {kSmall + normalizer(bytes(2, charsmap({0, 0}, ""))), "its array does not fit into it"},
           {kSmall + normalizer(bytes(2, charsmap({0, 0}, "x"))), "its last string has no end"},
           {"IQ== 0\nIg== 1\n",
            "is a tiktoken rank file, not a SentencePiece model; ltrain tokenizer import"},
       }) {
    INFO(text);
    const std::string said = model_refusal(file);
    CHECK_THAT(said, Contains("65: t.model: ") && Contains(text));
  }
  CHECK_THAT(error_of([] {
               make_sentencepiece_tokenizer(kSmall, "t.model", {"", "<no>"});
             }),
             Contains("64: ") && Contains("eos_token \"<no>\" is no token of t.model"));
  CHECK(make_sentencepiece_tokenizer(kSmall, "t.model", {"", "c"})->eot() == 5);
  CHECK(made_of_model(kSmall)->eot() == -1);  // "</s>" is no control piece of it
}

TEST_CASE("SentencePiece: a folder with a tokenizer.model alone, and with a tokenizer.json beside it",
          "[data][tokenizer]") {
  TempFolder f;
  write_file(f / "tokenizer.model", golden_model("bpe-bytes"));
  CHECK(make_huggingface_tokenizer(f.path())->hash() == made_of_model(golden_model("bpe-bytes"))->hash());
  write_file(f / "tokenizer.json", read_file(ltrain::test::kTokenizerFiles + "llama3.tokenizer.json"));
  CHECK(make_huggingface_tokenizer(f.path())->hash() ==
        make_huggingface_tokenizer(ltrain::test::kTokenizerFiles + "llama3.tokenizer.json")->hash());
}

TEST_CASE("SentencePiece: cutting at a safe place changes no id", "[data][tokenizer]") {
  std::mt19937 rng(3);
  for (const std::string& name : kModels) {
    INFO(name);
    const auto t = made_of_model(golden_model(name));
    int cuts = 0;
    for (const json& c : cases_of(name)) {
      const std::string text = c["text"].get<std::string>() + " the end,  of " + c["text"].get<std::string>();
      const std::string_view view = text;
      const int64_t cut = t->safe_cut(view.substr(0, rng() % (text.size() + 1)));
      if (cut == 0) continue;
      auto ids = t->encode(view.substr(0, static_cast<size_t>(cut)));
      t->encode(view.substr(static_cast<size_t>(cut)), ids);
      REQUIRE(ids == t->encode(text));
      ++cuts;
    }
    // A prefix that spaces are not removed for, a piece with a space inside: no place is safe.
    CHECK((cuts > 50) == name.starts_with("unigram"));
  }
}

TEST_CASE("SentencePiece: any bytes are encoded, and long texts too", "[data][tokenizer]") {
  std::mt19937 rng(4);
  for (const std::string& name : kModels) {
    const auto t = made_of_model(golden_model(name));
    for (int i = 0; i < 1000; ++i) {
      std::string noise(rng() % 60, '\0');
      for (char& c : noise) c = static_cast<char>(rng() % 3 ? rng() : "ab \n\xc3"[rng() % 5]);
      const std::string text = t->decode(t->encode(noise));
      if (!name.ends_with("bytes")) continue;
      REQUIRE(t->decode(t->encode(text)) == text);
    }
  }
  // Sums of scores go far beyond what single precision can add a word to.
  const auto t = made_of_model(golden_model("unigram-bytes"));
  const std::string part = "the end, Of zz\n";
  std::string text;
  for (int i = 0; i < 40000; ++i) text += part;
  const auto ids = t->encode(text);
  CHECK(t->decode(ids) == text);
  CHECK(ids.size() == 40000 * t->encode(part).size());
}

TEST_CASE("SentencePiece: random damage is an error or harmless", "[data][tokenizer]") {
  std::mt19937 rng(5);
  int refused = 0, taken = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string file = golden_model(kModels[static_cast<size_t>(round) % kModels.size()]);
    // The pieces are most of the file; trainer and normalizer are behind them.
    const size_t from = rng() % 2 ? 0 : file.size() - std::min<size_t>(file.size(), 2600);
    for (int k = 1 + static_cast<int>(rng() % 3); k > 0; --k) {
      const size_t at = from + rng() % (file.size() - from);
      if (rng() % 8 == 0)
        file.erase(at, rng() % 20);
      else
        file[at] = static_cast<char>(rng());
    }
    try {
      const auto t = made_of_model(file);
      t->decode(t->encode("the other\u00e9 <sep> abc  aaaa ½ 1111 \xff<s>Ａ…\u3000\t"));
      ++taken;
    } catch (const Error& e) {
      ++refused;
      if (e.code() != ExitCode::data) FAIL(e.what());
    }
  }
  CHECK(refused > 300);
  CHECK(taken > 300);
}

TEST_CASE("SentencePiece: random pieces and flags are an error, or give ids for any bytes",
          "[data][tokenizer]") {
  std::mt19937 rng(7);
  const auto noise = [&](size_t most) {
    std::string s(rng() % (most + 1), '\0');
    for (char& c : s) c = "ab \xe2\x96\x81\xc3\xa9<"[rng() % 9];
    return s;
  };
  int refused = 0, taken = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string file = piece("<unk>", 0, 2);
    for (int k = static_cast<int>(rng() % 30); k > 0; --k)
      file += piece(noise(5), static_cast<float>(static_cast<int>(rng() % 9) - 6),
                    rng() % 8 ? rng() % 4 / 3 * 3 + 1 : rng() % 7);
    file += trainer(number(3, 1 + rng() % 2)) +
            normalizer(number(3, rng() % 2) + number(4, rng() % 2) + number(5, rng() % 2));
    try {
      const auto t = made_of_model(file);
      ++taken;
      for (int k = 0; k < 5; ++k) {
        const std::string text = noise(40);
        for (const int32_t id : t->encode(text)) REQUIRE((id >= 0 && id < t->vocab_size()));
        t->decode(t->encode(text));
        REQUIRE(t->safe_cut(text) <= static_cast<int64_t>(text.size()));
      }
    } catch (const Error& e) {
      ++refused;
      if (e.code() != ExitCode::data) FAIL(e.what());
    }
  }
  CHECK(refused > 100);
  CHECK(taken > 100);
}

TEST_CASE("SentencePiece: a hostile table of characters costs bounded memory and time", "[data][tokenizer]") {
  // Circles, offsets beyond the array, values beyond the strings: random units.
  std::mt19937 rng(6);
  for (int round = 0; round < 300; ++round) {
    std::vector<uint32_t> units(1 + rng() % 600);
    for (uint32_t& u : units)
      u = rng() % 2 ? static_cast<uint32_t>(rng()) : (rng() % 600) << 10 | (rng() % 2) << 8 | (rng() % 256);
    const auto t = made_of_model(kSmall + normalizer(bytes(2, charsmap(units, std::string("xyz\0", 4)))));
    t->encode("the other  abc \xff\xe2\x96\x81 123");
  }
  // 'a' (97) becomes a thousand others: root 0 -> 97, whose value is at 353.
  std::vector<uint32_t> units(512, 0x80000000u);
  units[0] = 0;
  units[97] = 256u << 10 | 1u << 8 | 97;
  units[97 ^ 256] = 0;
  const std::string file = kSmall + normalizer(bytes(2, charsmap(units, std::string(1000, 'b') + '\0')));
  CHECK(made_of_model(file)->encode("a") == std::vector<int32_t>(1000, 4));
  CHECK_THAT(error_of([&] { made_of_model(file)->encode(std::string(10000, 'a')); }),
             Contains("65: the normalizer makes more than 705536 bytes of a text of 10000"));
}
