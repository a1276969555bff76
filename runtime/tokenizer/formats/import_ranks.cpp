#include "runtime/tokenizer/formats/import_ranks.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "base/json/json.h"
#include "runtime/tokenizer/byte_level_json.h"
#include "runtime/tokenizer/formats/tokenizer_json.h"

namespace ltrain::data {
namespace {

using Json = nlohmann::json;

/// Limit of a token's length. Published files have no longer ones, and the time for a token's pairs is
/// quadratic in its length.
constexpr size_t kMaxRankBytes = 512;

/// Layout of a name or regular expression, with the caller's special tokens if given.
ByteLevelLayout layout_of(const RankImport& how) {
  ByteLevelLayout layout = byte_level_layout(how.pattern);
  if (!how.special_tokens.empty()) {
    layout.specials.clear();
    for (const std::string& token : how.special_tokens)
      layout.specials.emplace_back(static_cast<int64_t>(layout.specials.size()), token);
    layout.bos = layout.eos = "";
  }
  set_document_tokens(layout, how.bos_token, how.eos_token);
  return layout;
}

/// All pairs of tokens that form a token, sorted by its rank and then by theirs. These are the merges that
/// ranks imply.
Json merges_of(const std::vector<std::string>& tokens, const std::string& name) {
  std::unordered_map<std::string_view, size_t> ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank) ranks.emplace(tokens[rank], rank);
  Json merges = Json::array();
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string_view token = tokens[rank];
    if (token.size() > kMaxRankBytes)
      fail(ExitCode::data, "{}: the token of rank {} has {} bytes; at most {} are supported", name, rank,
           token.size(), kMaxRankBytes);
    pairs.clear();
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut)), right = ranks.find(token.substr(cut));
      if (left != ranks.end() && right != ranks.end()) pairs.emplace_back(left->second, right->second);
    }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [left, right] : pairs)
      merges.push_back(Json::array({byte_level_text(tokens[left]), byte_level_text(tokens[right])}));
  }
  return merges;
}

}  // namespace

ImportedTokenizer import_ranks(const std::vector<std::string>& tokens, const RankImport& how,
                               const std::string& name) {
  const ByteLevelLayout layout = layout_of(how);
  const int64_t ranks = static_cast<int64_t>(tokens.size());
  Json vocab = Json::object();
  for (int64_t rank = 0; rank < ranks; ++rank)
    vocab[byte_level_text(tokens[static_cast<size_t>(rank)])] = rank;
  std::vector<SpecialToken> specials;
  for (const auto& [distance, token] : layout.specials) {
    check_special_token(token, vocab, name);
    // Also added to vocab, because a gap before an added token's id would be closed.
    vocab[token] = ranks + distance;
    specials.emplace_back(ranks + distance, token);
  }
  ImportedTokenizer imported;
  imported.tokenizer_json = tokenizer_json_text(layout, vocab, merges_of(tokens, name), specials, true);
  imported.tokenizer_config_json = tokenizer_config_text(layout);
  imported.ids = static_cast<int64_t>(read_tokenizer_json(imported.tokenizer_json, name)->contents.size());
  return imported;
}

}  // namespace ltrain::data
