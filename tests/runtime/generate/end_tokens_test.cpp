// End tokens by the files of a Hugging Face folder.
#include <catch2/catch.hpp>

#include <filesystem>

#include "runtime/checkpoint/files.h"
#include "runtime/files/write_file.h"
#include "runtime/generate/end_tokens.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("end tokens come from every file of a folder that names one, each once") {
  const TemporaryFolder t;
  // Its added tokens are <|end|> (500), <s> (501), <mask> (502) and [PAD] (503).
  const auto tokenizer = data::make_huggingface_tokenizer(std::string(LTRAIN_SOURCE_DIR) +
                                                          "/tests/golden/tokenizers/llama3.tokenizer.json");
  REQUIRE(tokenizer->find("<|end|>") == 500);
  const auto ends = [&] {
    std::vector<std::pair<int32_t, std::string>> found;
    for (const EndToken& e : end_tokens_of_folder(t.path(), *tokenizer))
      found.emplace_back(e.id, e.source.substr(0, e.source.find(t.path())) +
                                   e.source.substr(e.source.find_last_of('/') + 1));
    return found;
  };
  using Found = std::vector<std::pair<int32_t, std::string>>;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::remove(t.path() + "/" + name);
    if (!text.empty()) write_file(t.path() + "/" + name, text);
  };
  CHECK(ends().empty());
  for (const char* file : {"config.json", "generation_config.json"}) {
    const std::string source = std::string("eos_token_id of ") + file;
    const auto of = [&](const std::string& value) {
      write(file, "{\"eos_token_id\": " + value + ", \"bos_token_id\": 501}");
      return ends();
    };
    CHECK(of("7") == Found{{7, source}});
    CHECK(of("[7, 503, 7]") == Found{{7, source}, {503, source}});
    CHECK(of("null").empty());
    CHECK(of("[]").empty());
    CHECK(of("[-1, 504, 9]") == Found{{9, source}});  // ids that are never drawn
    for (const char* wrong : {"\"7\"", "[7, \"8\"]", "7.5", "{}", "true"})
      CHECK_THROWS_WITH(of(wrong),
                        Contains(std::string(file) + ": eos_token_id: expected an id, a list of ids"));
    write(file, "");
  }
  for (const char* map :
       {R"({"eos_token": "[PAD]"})", R"({"eos_token": {"content": "[PAD]", "lstrip": false}})"}) {
    write("special_tokens_map.json", map);
    CHECK(ends() == Found{{503, "eos_token of special_tokens_map.json"}});
  }
  write("special_tokens_map.json", R"({"eos_token": 3})");
  CHECK_THROWS_WITH(ends(), Contains("special_tokens_map.json: eos_token: expected a token's text, got 3"));
  write("special_tokens_map.json", "");
  // A turn end that the tokenizer has, in both places of a chat template; <|im_end|> is unknown to it.
  const std::string text = "{{ '<s>' + message['content'] + '<|im_end|>' + '<|end|>' }}";
  write("chat_template.jinja", text);
  CHECK(ends() == Found{{500, "the turn end of the chat template in chat_template.jinja"}});
  write("chat_template.jinja", "");
  for (const std::string& value :
       {"\"" + text + "\"", "[{\"name\": \"default\", \"template\": \"" + text + "\"}]"}) {
    write("tokenizer_config.json", "{\"chat_template\": " + value + "}");
    CHECK(ends() == Found{{500, "the turn end of the chat template in tokenizer_config.json"}});
  }
  // All together, each id once.
  write("config.json", R"({"eos_token_id": 7})");
  write("generation_config.json", R"({"eos_token_id": [7, 500]})");
  write("special_tokens_map.json", R"({"eos_token": "[PAD]"})");
  CHECK(ends() == Found{{7, "eos_token_id of config.json"},
                        {500, "eos_token_id of generation_config.json"},
                        {503, "eos_token of special_tokens_map.json"}});
  write("config.json", "{");
  CHECK_THROWS_WITH(ends(), Contains("/config.json: "));
}
