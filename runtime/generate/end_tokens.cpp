#include "runtime/generate/end_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/checkpoint/files.h"
#include "runtime/files/strict_json.h"

namespace ltrain {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBytes = 64 << 20;
/// Tokens that end a turn in published chat templates: ChatML and Qwen, Llama 3, Gemma, Phi, OLMo, OpenChat,
/// gpt-oss.
constexpr const char* kTurnEnds[] = {"<|im_end|>",      "<|eot_id|>", "<|eom_id|>",
                                     "<end_of_turn>",   "<|end|>",    "<|endofturn|>",
                                     "<|end_of_turn|>", "<|eot|>",    "<|return|>"};

class EndTokens {
 public:
  EndTokens(const std::string& folder, const data::Tokenizer& tokenizer)
      : folder_(folder), tokenizer_(tokenizer) {}

  std::vector<EndToken> read() {
    for (const char* file : {"config.json", "generation_config.json"}) ids(file);
    const json map = object("special_tokens_map.json");
    if (const auto it = map.find("eos_token"); it != map.end() && !it->is_null()) {
      const json& value = it->is_object() && it->contains("content") ? it->at("content") : *it;
      if (!value.is_string()) wrong("special_tokens_map.json", "eos_token", *it, "a token's text");
      text(value, "eos_token of " + folder_ + "/special_tokens_map.json");
    }
    const std::string file = folder_ + "/chat_template.jinja";
    if (path_exists(file)) turn_ends(read_text_file(file, kMaxBytes), file);
    const json config = object("tokenizer_config.json");
    if (const auto it = config.find("chat_template"); it != config.end())
      turn_ends(it->dump(-1, ' ', false, json::error_handler_t::replace), folder_ + "/tokenizer_config.json");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void wrong(const std::string& file, const char* key, const json& value, const char* expected) {
    fail(ExitCode::data, "{}/{}: {}: expected {}, got {}", folder_, file, key, expected,
         printable(value.dump(-1, ' ', false, json::error_handler_t::replace), 60));
  }

  /// Object in a JSON file; empty if the file is missing.
  json object(const std::string& name) {
    const std::string path = folder_ + "/" + name;
    if (!path_exists(path)) return json::object();
    std::string error;
    json value = data::parse_strict(read_text_file(path, kMaxBytes), 64, error);
    if (!error.empty()) fail(ExitCode::data, "{}: {}", path, error);
    if (!value.is_object()) fail(ExitCode::data, "{}: expected an object", path);
    return value;
  }

  void ids(const char* file) {
    constexpr const char* kKey = "eos_token_id";
    const json root = object(file);
    const auto it = root.find(kKey);
    if (it == root.end() || it->is_null()) return;
    for (const json& id : it->is_array() ? *it : json::array({*it})) {
      if (!id.is_number_integer()) wrong(file, kKey, *it, "an id, a list of ids or null");
      // An id outside the vocabulary is never sampled.
      if (id >= 0 && id < tokenizer_.vocab_size())
        add(id.get<int32_t>(), fmt::format("{} of {}/{}", kKey, folder_, file));
    }
  }

  void turn_ends(const std::string& chat_template, const std::string& file) {
    for (const char* token : kTurnEnds)
      if (chat_template.find(token) != std::string::npos)
        text(token, "the turn end of the chat template in " + file);
  }

  void text(const std::string& token, const std::string& source) {
    if (const int32_t id = tokenizer_.find(token); id >= 0) add(id, source);
  }

  void add(int32_t id, const std::string& source) {
    const auto same = [&](const EndToken& t) { return t.id == id; };
    if (std::none_of(tokens_.begin(), tokens_.end(), same)) tokens_.push_back({id, source});
  }

  std::string folder_;
  const data::Tokenizer& tokenizer_;
  std::vector<EndToken> tokens_;
};

}  // namespace

std::vector<EndToken> end_tokens_of_folder(const std::string& folder, const data::Tokenizer& tokenizer) {
  return EndTokens(folder, tokenizer).read();
}

}  // namespace ltrain
