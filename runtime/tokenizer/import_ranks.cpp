#include "runtime/tokenizer/import_ranks.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "kernels/base/error.h"
#include "kernels/base/printable.h"
#include "runtime/tokenizer/regex.h"
#include "runtime/tokenizer/split_patterns.h"
#include "runtime/tokenizer/tokenizer_json.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {
namespace {

using Json = nlohmann::json;

/// Longer ones are in no published file; pairs of a token take time by the square of its length.
constexpr size_t kMaxTokenBytes = 512;

/// A special token by its distance from the last rank.
using Special = std::pair<int64_t, std::string>;

struct Published {
  std::string_view name, pattern;
  bool nfc = false;
  std::string bos, eos;
  std::vector<Special> specials;
};

/// The 256 of Llama-3.1; those of Llama-3 differ in the names of a few that text does not have.
std::vector<Special> llama3_specials() {
  std::vector<Special> all = {{0, "<|begin_of_text|>"},
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

std::optional<Published> find_published(const std::string& name) {
  const std::string end = "<|endoftext|>";
  const std::vector<Published> all = {
      {"gpt2", kGpt2Pattern, false, "", end, {{0, end}}},
      {"cl100k",
       kLlama3Pattern,
       false,
       "",
       end,
       {{1, end},
        {2, "<|fim_prefix|>"},
        {3, "<|fim_middle|>"},
        {4, "<|fim_suffix|>"},
        {20, "<|endofprompt|>"}}},
      {"llama3", kLlama3Pattern, false, "<|begin_of_text|>", "<|end_of_text|>", llama3_specials()},
      {"qwen2", kQwen2Pattern, true, "", end, {{0, end}, {1, "<|im_start|>"}, {2, "<|im_end|>"}}},
      {"o200k", kO200kPattern, false, "", end, {{1, end}, {20, "<|endofprompt|>"}}}};
  const auto it = std::find_if(all.begin(), all.end(), [&](const Published& p) { return p.name == name; });
  if (it == all.end()) return std::nullopt;
  return *it;
}

/// Name or regular expression, with what the caller gave in the place of the published.
Published layout_of(const RankImport& how) {
  Published layout;
  if (auto known = find_published(how.pattern)) {
    layout = std::move(*known);
  } else {
    // A word is no pattern that divides text, but a name that is not known.
    const bool word = std::all_of(how.pattern.begin(), how.pattern.end(),
                                  [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
    if (word)
      fail(ExitCode::usage,
           "pattern {}: not known; gpt2, cl100k, llama3, qwen2, o200k or a regular expression",
           printable(how.pattern, 80));
    layout.pattern = how.pattern;
    Regex(how.pattern, "pattern");  // its error names the construct
  }
  if (!how.special_tokens.empty()) {
    layout.specials.clear();
    for (const std::string& token : how.special_tokens)
      layout.specials.emplace_back(static_cast<int64_t>(layout.specials.size()), token);
    layout.bos = layout.eos = "";
  }
  for (auto [given, of_layout, what] :
       {std::tuple{&how.bos_token, &layout.bos, "bos"}, std::tuple{&how.eos_token, &layout.eos, "eos"}}) {
    if (given->empty()) continue;
    if (std::none_of(layout.specials.begin(), layout.specials.end(),
                     [token = given](const Special& s) { return s.second == *token; }))
      fail(ExitCode::usage, "{} token {}: is none of the special tokens; give them all with --special-tokens",
           what, printable(*given, 80));
    *of_layout = *given;
  }
  return layout;
}

bool is_utf8(std::string_view text) {
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    const Char c = next_char(p, end);
    if (!c.valid) return false;
    p += c.bytes;
  }
  return true;
}

/// Bytes as a byte-level vocabulary writes them.
std::string written(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const uint32_t code = byte_level_alphabet()[static_cast<unsigned char>(c)];  // below 0x800
    if (code >= 0x80) text += static_cast<char>(0xC0 | code >> 6);
    text += static_cast<char>(code < 0x80 ? code : 0x80 | (code & 0x3Fu));
  }
  return text;
}

/// All pairs of tokens that make a token, by its rank and then by theirs: what merges under ranks alone.
Json merges_of(const std::vector<std::string>& tokens, const std::string& name) {
  std::unordered_map<std::string_view, size_t> ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank) ranks.emplace(tokens[rank], rank);
  Json merges = Json::array();
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string_view token = tokens[rank];
    if (token.size() > kMaxTokenBytes)
      fail(ExitCode::data, "{}: the token of rank {} has {} bytes; at most {} are supported", name, rank,
           token.size(), kMaxTokenBytes);
    pairs.clear();
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut)), right = ranks.find(token.substr(cut));
      if (left != ranks.end() && right != ranks.end()) pairs.emplace_back(left->second, right->second);
    }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [left, right] : pairs)
      merges.push_back(Json::array({written(tokens[left]), written(tokens[right])}));
  }
  return merges;
}

/// What stands around a text: the token that begins one.
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

ImportedTokenizer import_ranks(const std::vector<std::string>& tokens, const RankImport& how,
                               const std::string& name) {
  const Published layout = layout_of(how);
  const int64_t ranks = static_cast<int64_t>(tokens.size());
  Json vocab = Json::object(), added = Json::array();
  for (int64_t rank = 0; rank < ranks; ++rank) vocab[written(tokens[static_cast<size_t>(rank)])] = rank;
  int64_t bos = -1;
  for (const auto& [distance, token] : layout.specials) {
    const char* wrong = token.empty()           ? "has no text"
                        : !is_utf8(token)       ? "is not UTF-8"
                        : vocab.contains(token) ? "is a token of the file already, or comes twice"
                                                : nullptr;
    if (wrong) fail(ExitCode::usage, "special token \"{}\" for {}: {}", printable(token, 80), name, wrong);
    vocab[token] = ranks + distance;  // here too: a gap before an added token's id would be closed
    added.push_back({{"id", ranks + distance},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    if (token == layout.bos) bos = ranks + distance;
  }
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", std::string(layout.pattern)}}},
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
        {"ignore_merges", true},
        {"vocab", vocab},
        {"merges", merges_of(tokens, name)}}}};
  ImportedTokenizer imported;
  imported.tokenizer_json = root.dump(1);
  Json config = Json::object();
  if (!layout.bos.empty()) config["bos_token"] = layout.bos;
  if (!layout.eos.empty()) config["eos_token"] = layout.eos;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  imported.tokenizer_config_json = config.dump(1);
  imported.ids = static_cast<int64_t>(read_tokenizer_json(imported.tokenizer_json, name)->contents.size());
  return imported;
}

}  // namespace ltrain::data
