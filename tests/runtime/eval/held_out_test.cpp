// Bytes of text that tokens stand for, and which sets a recipe names.
#include "runtime/eval/held_out.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

#include <catch2/catch.hpp>
#include <numeric>

using namespace ltrain;

namespace {

const std::string kGolden = std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/tokenizers/";

int64_t bytes_of(data::Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> bytes = text_bytes(tokenizer);
  int64_t sum = 0;
  for (const int32_t id : tokenizer.encode(text)) sum += bytes[static_cast<size_t>(id)];
  return sum;
}

}  // namespace

TEST_CASE("bytes of tokens add up to those of the text, whatever the tokenizer") {
  const std::string plain = "A line, of 12 words; and\nanother  one!\n",
                    odd = "Über 東京 \xF0\x9F\x98\x80 naïve";
  const auto byte = data::make_tokenizer("byte", "");
  CHECK(bytes_of(*byte, plain) == static_cast<int64_t>(plain.size()));
  CHECK(byte->text_bytes(256) == 0);
  for (const char* file : {"gpt2.tokenizer.json", "llama3.tokenizer.json", "qwen2.tokenizer.json"}) {
    INFO(file);
    const auto t = data::make_tokenizer("huggingface", kGolden + file);
    for (const std::string& text : {plain, odd})
      CHECK(bytes_of(*t, text) == static_cast<int64_t>(text.size()));
  }
  // A space that the tokenizer puts before a text is in its tokens.
  for (const char* file : {"llama2.tokenizer.json", "bpe-bytes.model"}) {
    INFO(file);
    const auto t = data::make_tokenizer("huggingface", kGolden + file);
    for (const std::string& text : {plain, odd})
      CHECK(std::abs(bytes_of(*t, text) - static_cast<int64_t>(text.size())) <= 1);
  }
  const auto llama3 = data::make_tokenizer("huggingface", kGolden + "llama3.tokenizer.json");
  CHECK(llama3->text_bytes(llama3->find("<|end|>")) == 0);  // a mark, though it can be shown
  CHECK(llama3->text_bytes(-1) == 0);
  CHECK(llama3->text_bytes(1 << 20) == 0);
}

TEST_CASE("sources of one name are one set, in the order in which names come") {
  Recipe r;
  r.data.eval = {{"a", 1, "x"}, {"b", 2, "y"}, {"c", 3, "x"}};
  const auto sets = eval_sets(r);
  REQUIRE(sets.size() == 2);
  CHECK((sets[0].name == "x" && sets[0].sources.size() == 2 && sets[0].sources[1].path == "c" &&
         sets[0].sources[1].weight == 3));
  CHECK((sets[1].name == "y" && sets[1].sources[0].path == "b"));
  for (const char* name : {"wiki", "a-b_c.2"}) CHECK(is_set_name(name));
  for (const char* name : {"", "a/b", "a b", "a=b", "\x1b[2J"}) CHECK_FALSE(is_set_name(name));
  CHECK_FALSE(is_set_name(std::string(65, 'a')));
}
