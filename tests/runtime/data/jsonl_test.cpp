// The fast parser of JSON lines against a complete one. LTRAIN_FUZZ_EXECUTIONS asks for a longer run.
#include "runtime/data/input/jsonl.h"
#include "base/json/json.h"

#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/runtime/data/support.h"
#include "tests/support/mutations.h"

using namespace ltrain;
using namespace ltrain::data;
using namespace ltrain::data::test;
using Catch::Contains;

namespace {

using ltrain::test::Random;

/// Text of the top-level key "text" by nlohmann's parser, which builds the whole value; nullopt if the line
/// is not JSON, or the key is not there once, with a string.
std::optional<std::string> complete_parse(const std::string& line) {
  int times = 0;
  const auto count = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    times += depth == 1 && event == nlohmann::json::parse_event_t::key && parsed == "text";
    return true;
  };
  const nlohmann::json record = nlohmann::json::parse(line, count, false);
  if (!record.is_object() || times != 1 || !record["text"].is_string()) return std::nullopt;
  return record["text"].get<std::string>();
}

const std::vector<std::string> kSeeds = {
    "{\"text\": \"a line \\u00e9\\ud83d\\ude00 \\\"quoted\\\"\\n\", \"id\": 12, \"more\": [1, -2.5e-3, "
    "null]}",
    "{\"meta\":{\"text\":\"inner\",\"list\":[{\"text\":[]},true,false]},\"text\":\"last, "
    "\xC3\xA9\xF0\x9F\x98\x80\"}\r",
    "  { \"te\\u0078t\" : \"escaped key\" , \"n\" : 18446744073709551615, \"m\": -9223372036854775808 } ",
    "{\"text\":\"\",\"a\":0.1,\"b\":1e308,\"c\":-0,\"d\":[[[[[[]]]]]],\"e\":{\"f\":{\"g\":{}}}}",
    "{\"id\":\"0123456789012345678901234567890123456789012345678901234567890123456789\",\"text\":\"x\"}"};

/// Tokens that JSON has, nearly has, and does not have.
const std::vector<std::string> kTokens = {"\"text\":",
                                          "\"text\":\"b\",",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "\"",
                                          "\\",
                                          "\\ud800",
                                          "\\udc00",
                                          "\\u0000",
                                          "\\uD83D",
                                          "\\u00",
                                          "tru",
                                          "nul",
                                          "NaN",
                                          "-",
                                          "01",
                                          "1e999",
                                          "1.",
                                          ".5",
                                          "+1",
                                          "Infinity",
                                          "\xEF\xBB\xBF",
                                          "\xED\xA0\x80",
                                          "\xC0\x80",
                                          "\t",
                                          "\n",
                                          "123456789012345678901234567890",
                                          "/*x*/",
                                          "'",
                                          "\x01",
                                          "\x7F",
                                          "\xF4\x90\x80\x80",
                                          "null",
                                          "1E+",
                                          "\\x",
                                          std::string(1, '\0')};

/// One to three changes: a byte, a token put in, bytes left out, the end cut off, or a piece of another seed.
std::string changed(std::string line, Random& random) {
  for (unsigned n = 1 + random() % 3; n-- > 0 && !line.empty();) {
    const size_t at = random() % line.size();
    const std::string& token = kTokens[random() % kTokens.size()];
    switch (random() % 6) {
      case 0:
        line[at] = static_cast<char>(random());
        break;
      case 1:
        line.erase(at, 1 + random() % 8);
        break;
      case 2:
        if (random() % 8 == 0) line.resize(at);
        break;
      case 3:
        line.replace(at, 1, kSeeds[random() % kSeeds.size()].substr(random() % 20, random() % 40));
        break;
      default:
        line.insert(at, token);
    }
  }
  return line;
}

}  // namespace

TEST_CASE("jsonl: the fast parser reads ordinary records, and leaves all others to the slower one",
          "[data]") {
  for (const std::string& line : kSeeds) {
    INFO(line);
    CHECK(ordinary_text(line, "text") == complete_parse(line));
    CHECK(ordinary_text(line, "text").has_value());
  }
  const std::string long_text(10'000'000, 'x');
  CHECK(ordinary_text("{\"text\": \"" + long_text + "\"}", "text") == long_text);
  // Malformed where the text is not, and valid lines that simdjson does not take.
  for (const char* line :
       {"{\"text\": \"a\", \"x\": nul}", "{\"text\": \"a\", \"x\": 1x}", "{\"text\": \"a\", \"x\": [1}",
        "{\"text\": \"a\", \"x\": \"\\udc00\"}", "{\"x\": \"\xff\", \"text\": \"a\"}", "{\"text\": \"a\"} 1",
        "{\"text\": \"a\", \"x\": 1e999}", "{\"text\": \"a\", \"text\": \"a\"}", "{\"text\": 1}", "[1]", "",
        "{\"text\": \"a\", \"x\": {\"y\": tru}}", "{\"text\": \"a\", \"x\": {\"y\" 1}}"}) {
    INFO(line);
    CHECK_FALSE(ordinary_text(line, "text").has_value());
    CHECK_THAT(error_of([&] { json_text(line, "text", "f", 3); }), Contains("f:3: "));
  }
  const std::string deep =
      "{\"a\": " + std::string(2000, '[') + std::string(2000, ']') + ", \"text\": \"x\"}";
  for (const std::string& line :
       {deep, std::string("\xEF\xBB\xBF{\"text\": \"x\"}"), std::string("{\"text\": \"x\", \"n\": NaN}"),
        std::string("{\"text\": \"x\", \"n\": 123456789012345678901234567890}"),
        "{\"text\": \"x\"" + std::string(17 << 20, ' ') + "}"}) {
    INFO(line.substr(0, 60));
    CHECK_FALSE(ordinary_text(line, "text").has_value());
    CHECK(json_text(line, "text", "f", 3) == "x");
  }
}

TEST_CASE("jsonl: changed records have the text of a complete parse, or are refused by it too", "[data]") {
  const int64_t all = ltrain::test::fuzz_executions(20000);
  Random random = ltrain::test::fuzz_random(5);
  int64_t ordinary = 0, others = 0;
  for (int64_t i = 0; i < all; ++i) {
    const std::string line = changed(kSeeds[random() % kSeeds.size()], random);
    const std::optional<std::string> text = ordinary_text(line, "text");
    ordinary += text.has_value(), others += !text.has_value();
    if (text && text != complete_parse(line)) {
      INFO(line);
      REQUIRE(text == complete_parse(line));
    }
    const std::string repaired = repair_record(line);
    if (const auto again = ordinary_text(repaired, "text"); again && again != complete_parse(repaired))
      FAIL("repaired: " << repaired);
    record_shape(line, "text");
  }
  CHECK(ordinary > all / 20);
  CHECK(others > all / 20);
  if (std::getenv("LTRAIN_FUZZ_EXECUTIONS")) WARN(all << " lines, " << ordinary << " of them ordinary");
}
