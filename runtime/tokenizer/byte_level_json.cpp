#include "runtime/tokenizer/byte_level_json.h"

#include <algorithm>
#include <cctype>
#include <tuple>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/tokenizer/regex.h"
#include "runtime/tokenizer/split_patterns.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {

using Json = nlohmann::json;

/// The 256 special tokens of Llama-3.1. Llama-3 has other names for a few that do not occur in text.
std::vector<SpecialToken> llama3_specials() {
  std::vector<SpecialToken> all = {{0, "<|begin_of_text|>"},
                                   {1, "<|end_of_text|>"},
                                   {2, "<|reserved_special_token_0|>"},
                                   {3, "<|reserved_special_token_1|>"},
                                   {4, "<|finetune_right_pad_id|>"},
                                   {5, "<|reserved_special_token_2|>"},
                                   {6, "<|start_header_id|>"},
                                   {7, "<|end_header_id|>"},
                                   {8, "<|eom_id|>"},
                                   {9, "<|eot_id|>"},
                                   {10, "<|python_tag|>"}};
  for (int64_t i = 11; i < 256; ++i) all.emplace_back(i, fmt::format("<|reserved_special_token_{}|>", i - 8));
  return all;
}

std::vector<ByteLevelLayout> published_layouts() {
  const std::string end = "<|endoftext|>";
  const auto text = [](std::string_view pattern) { return std::string(pattern); };
  return {{"gpt2", text(kGpt2Pattern), false, "", end, {{0, end}}},
          {"cl100k",
           text(kLlama3Pattern),
           false,
           "",
           end,
           {{1, end},
            {2, "<|fim_prefix|>"},
            {3, "<|fim_middle|>"},
            {4, "<|fim_suffix|>"},
            {20, "<|endofprompt|>"}}},
          {"llama3", text(kLlama3Pattern), false, "<|begin_of_text|>", "<|end_of_text|>", llama3_specials()},
          {"qwen2", text(kQwen2Pattern), true, "", end, {{0, end}, {1, "<|im_start|>"}, {2, "<|im_end|>"}}},
          {"o200k", text(kO200kPattern), false, "", end, {{1, end}, {20, "<|endofprompt|>"}}}};
}

bool is_utf8(std::string_view text) {
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    const Char c = next_char(p, end);
    if (!c.valid) return false;
    p += c.bytes;
  }
  return true;
}

/// Post-processor template: the token that begins a text.
Json template_of(const std::string& bos, int64_t id) {
  const auto token = [&](int type) { return Json{{"SpecialToken", {{"id", bos}, {"type_id", type}}}}; };
  const auto text = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  return {
      {"type", "TemplateProcessing"},
      {"single", Json::array({token(0), text("A", 0)})},
      {"pair", Json::array({token(0), text("A", 0), token(1), text("B", 1)})},
      {"special_tokens", {{bos, {{"id", bos}, {"ids", Json::array({id})}, {"tokens", Json::array({bos})}}}}}};
}

}  // namespace

ByteLevelLayout byte_level_layout(const std::string& given) {
  for (const ByteLevelLayout& layout : published_layouts())
    if (layout.name == given) return layout;
  // A single word is an unknown name rather than a pattern.
  const bool word = std::all_of(given.begin(), given.end(),
                                [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
  if (word)
    fail(ExitCode::usage, "pattern {}: not known; gpt2, cl100k, llama3, qwen2, o200k or a regular expression",
         printable(given, 80));
  Regex(given, "pattern");  // its error names the construct
  ByteLevelLayout layout;
  layout.pattern = given;
  return layout;
}

void set_document_tokens(ByteLevelLayout& layout, const std::string& bos, const std::string& eos) {
  for (auto [given, of_layout, what] :
       {std::tuple{&bos, &layout.bos, "bos"}, std::tuple{&eos, &layout.eos, "eos"}}) {
    if (given->empty()) continue;
    if (std::none_of(layout.specials.begin(), layout.specials.end(),
                     [token = given](const SpecialToken& s) { return s.second == *token; }))
      fail(ExitCode::usage, "{} token {}: is none of the special tokens; give them all with --special-tokens",
           what, printable(*given, 80));
    *of_layout = *given;
  }
}

void check_special_token(const std::string& token, const Json& vocab, const std::string& of) {
  const char* wrong = token.empty()           ? "has no text"
                      : !is_utf8(token)       ? "is not UTF-8"
                      : vocab.contains(token) ? "is a token of the file already, or comes twice"
                                              : nullptr;
  if (wrong) fail(ExitCode::usage, "special token \"{}\" for {}: {}", printable(token, 80), of, wrong);
}

const uint32_t* byte_level_alphabet() {
  static const std::vector<uint32_t> alphabet = [] {
    std::vector<uint32_t> a(256);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      a[b] = plain ? b : next++;
    }
    return a;
  }();
  return alphabet.data();
}

std::string byte_level_text(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const uint32_t code = byte_level_alphabet()[static_cast<unsigned char>(c)];  // below 0x800
    if (code >= 0x80) text += static_cast<char>(0xC0 | code >> 6);
    text += static_cast<char>(code < 0x80 ? code : 0x80 | (code & 0x3Fu));
  }
  return text;
}

std::string tokenizer_json_text(const ByteLevelLayout& layout, const Json& vocab, const Json& merges,
                                const std::vector<SpecialToken>& specials, bool ignore_merges) {
  Json added = Json::array();
  int64_t bos = -1;
  for (const auto& [id, token] : specials) {
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    if (token == layout.bos) bos = id;
  }
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", layout.pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json root = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", layout.nfc ? Json{{"type", "NFC"}} : Json(nullptr)},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}}},
      {"post_processor", bos >= 0 ? template_of(layout.bos, bos) : Json(nullptr)},
      {"decoder", bytes},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", ignore_merges},
        {"vocab", vocab},
        {"merges", merges}}}};
  return root.dump(1);
}

std::string tokenizer_config_text(const ByteLevelLayout& layout) {
  Json config = Json::object();
  if (!layout.bos.empty()) config["bos_token"] = layout.bos;
  if (!layout.eos.empty()) config["eos_token"] = layout.eos;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return config.dump(1);
}

}  // namespace ltrain::data
