#include "runtime/tokenizer/formats/tekken.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/strict_json.h"
#include "runtime/tokenizer/bpe_merges_file.h"
#include "runtime/tokenizer/byte_level_json.h"
#include "runtime/tokenizer/formats/json_fields.h"
#include "runtime/tokenizer/split_patterns.h"

namespace ltrain::data {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxTokenBytes = 512, kMaxSpecialBytes = 1000;

/// Special tokens of a file that lists none: mistral-common's, up to its version v7.
constexpr const char* kSpecialTokens[] = {"<unk>",
                                          "<s>",
                                          "</s>",
                                          "[INST]",
                                          "[/INST]",
                                          "[AVAILABLE_TOOLS]",
                                          "[/AVAILABLE_TOOLS]",
                                          "[TOOL_RESULTS]",
                                          "[/TOOL_RESULTS]",
                                          "[TOOL_CALLS]",
                                          "[IMG]",
                                          "<pad>",
                                          "[IMG_BREAK]",
                                          "[IMG_END]",
                                          "[PREFIX]",
                                          "[MIDDLE]",
                                          "[SUFFIX]",
                                          "[SYSTEM_PROMPT]",
                                          "[/SYSTEM_PROMPT]",
                                          "[TOOL_CONTENT]"};

std::vector<std::string> special_tokens(JsonFields& root, int64_t count) {
  std::vector<std::string> tokens;
  if (const Json* given = root.find("special_tokens")) {
    const std::string where = root.where("special_tokens");
    if (!given->is_array()) fail(ExitCode::data, "{}: not a list", where);
    for (size_t i = 0; i < given->size(); ++i) {
      JsonFields f((*given)[i], fmt::format("{}[{}]", where, i));
      if (const int64_t rank = f.integer("rank", 0, kMostJsonTokens - 1); rank != static_cast<int64_t>(i))
        fail(ExitCode::data, "{}: {}, expected {}: special tokens follow each other", f.where("rank"), rank,
             i);
      tokens.push_back(f.text("token_str"));
      f.pass_over("is_control");
      f.done();
      if (tokens.back().empty() || tokens.back().size() > kMaxSpecialBytes)
        fail(ExitCode::data, "{}: {} bytes, expected 1 to {}", f.where("token_str"), tokens.back().size(),
             kMaxSpecialBytes);
    }
  } else {
    tokens.assign(std::begin(kSpecialTokens), std::end(kSpecialTokens));
  }
  if (static_cast<int64_t>(tokens.size()) > count)
    fail(ExitCode::data, "{}: {} special tokens, and config.default_num_special_tokens is {}", root.where(),
         tokens.size(), count);
  while (static_cast<int64_t>(tokens.size()) < count)
    tokens.push_back(fmt::format("<SPECIAL_{}>", tokens.size()));
  std::unordered_set<std::string_view> seen;
  for (const std::string& token : tokens)
    if (!seen.insert(token).second)
      fail(ExitCode::data, "{}: special token \"{}\" again", root.where(), printable(token, 80));
  return tokens;
}

/// The bytes of the first `count` tokens, by rank.
std::vector<std::string> ranked_tokens(JsonFields& root, int64_t count) {
  const Json& vocab = root.list("vocab");
  const std::string where = root.where("vocab");
  if (static_cast<int64_t>(vocab.size()) < count)
    fail(ExitCode::data,
         "{}: {} tokens, expected at least the {} that config.default_vocab_size leaves for them", where,
         vocab.size(), count);
  std::vector<std::string> tokens(static_cast<size_t>(count));
  std::unordered_set<std::string_view> seen;
  for (size_t i = 0; i < tokens.size(); ++i) {
    JsonFields f(vocab[i], fmt::format("{}[{}]", where, i));
    if (const int64_t rank = f.integer("rank", 0, kMostJsonTokens - 1); rank != static_cast<int64_t>(i))
      fail(ExitCode::data, "{}: {}, expected {}: tokens stand in the order of their ranks", f.where("rank"),
           rank, i);
    const std::string bytes = f.text("token_bytes");
    f.pass_over("token_str");
    f.done();
    if (!decode_base64(bytes, tokens[i]) || tokens[i].empty() || tokens[i].size() > kMaxTokenBytes)
      fail(ExitCode::data, "{}: \"{}\" is not base64 of 1 to {} bytes", f.where("token_bytes"),
           printable(bytes, 40), kMaxTokenBytes);
    if (i < 256 && tokens[i] != std::string(1, static_cast<char>(i)))
      fail(ExitCode::data, "{}: expected the byte {} alone: the first 256 tokens are the bytes in order",
           f.where("token_bytes"), i);
    if (!seen.insert(tokens[i]).second)
      fail(ExitCode::data, "{}: the token of another rank again", f.where("token_bytes"));
  }
  return tokens;
}

/// Merges of two tokens into a later one, by its rank. Ids begin behind the `special` tokens.
std::vector<BpeMerge> merges_of(const std::vector<std::string>& tokens, int64_t special) {
  std::unordered_map<std::string_view, int32_t> ids;
  const auto id_of = [&](size_t rank) { return static_cast<int32_t>(special) + static_cast<int32_t>(rank); };
  for (size_t rank = 0; rank < tokens.size(); ++rank) ids.emplace(tokens[rank], id_of(rank));
  std::vector<BpeMerge> merges;
  for (size_t rank = 256; rank < tokens.size(); ++rank) {
    const std::string_view token = tokens[rank];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
      if (left != ids.end() && right != ids.end())
        merges.push_back({left->second, right->second, id_of(rank), static_cast<int32_t>(rank)});
    }
  }
  return merges;
}

}  // namespace

bool is_tekken_file(const std::string& path) {
  const std::filesystem::path p = path;
  return p.extension() == ".json" && p.filename().string().find("tekken") != std::string::npos;
}

std::shared_ptr<HuggingfaceTables> read_tekken(const std::string& text, const std::string& name) {
  std::string error;
  const Json json = parse_strict(text, 16, error);
  if (!error.empty()) fail(ExitCode::data, "{}: {}", name, error);
  JsonFields root(json, name);
  JsonFields config(root.get("config"), root.where("config"));
  const std::string pattern = config.text("pattern");
  const int64_t special = config.integer("default_num_special_tokens", 0, kMostJsonTokens - 1);
  const int64_t all = config.integer("default_vocab_size", special + 256, kMostJsonTokens);
  for (const char* key : {"num_vocab_tokens", "version"}) config.pass_over(key);
  config.done();
  auto t = std::make_shared<HuggingfaceTables>();
  t->contents = special_tokens(root, special);
  const std::vector<std::string> tokens = ranked_tokens(root, all - special);
  // Settings of pictures, sound and chats, which do not change the ids of text.
  for (const char* key : {"image", "audio", "multimodal", "model_settings_builder", "version", "type"})
    root.pass_over(key);
  root.done();

  for (int64_t id = 0; id < special; ++id) {
    AddedToken a;
    a.id = static_cast<int32_t>(id);
    a.content = t->contents[static_cast<size_t>(id)];
    a.special = true;
    t->added.push_back(a);
  }
  t->specials_in_text = false;
  t->shown = t->contents;
  std::vector<std::string> symbols(static_cast<size_t>(special));  // special tokens never come of merges
  for (const std::string& token : tokens) {
    symbols.push_back(token);
    t->shown.push_back(token);
    t->contents.push_back(byte_level_text(token));
  }
  const std::vector<BpeMerge> merges = merges_of(tokens, special);
  t->table = BpeTable(std::move(symbols), merges);
  t->byte_level = true;
  t->ignore_merges = true;
  const bool words = splits_by_words(pattern);
  t->pre_tokenizer = PreTokenizer({RegexSplit{.pattern = Regex(pattern, config.where("pattern")),
                                              .behavior = SplitBehavior::isolated,
                                              .invert = false,
                                              .local = words,
                                              .by_words = words}});
  const auto find = [&](const char* token) {
    const auto end = t->contents.begin() + special, at = std::find(t->contents.begin(), end, token);
    return at == end ? -1 : static_cast<int32_t>(at - t->contents.begin());
  };
  t->bos = find("<s>");
  t->eot = find("</s>");
  if (t->bos >= 0) t->before = {t->bos};
  const std::string hashed = "ltrain tekken 1 " + text;
  t->hash = fmt::format("{:016x}", XXH3_64bits(hashed.data(), hashed.size()));
  return t;
}

}  // namespace ltrain::data
