#include <xxhash.h>

#include "base/error.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/bpe_merges_file.h"
#include "runtime/tokenizer/gpt2_split.h"
#include "runtime/tokenizer/piece_cache.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::data {
namespace {

std::string hash_of(const BpeTable& table) {
  std::string all = "ltrain gpt2 tokenizer 1";
  for (int32_t id = 0; id < table.size(); ++id) {
    all += '\0';
    all += std::to_string(table.token(id).size());
    all += ' ';
    all += table.token(id);
  }
  return fmt::format("{:016x}", XXH3_64bits(all.data(), all.size()));
}

class Gpt2Tokenizer final : public Tokenizer {
 public:
  using Tokenizer::decode;
  using Tokenizer::encode;
  Gpt2Tokenizer(std::shared_ptr<const BpeTable> table, std::string hash)
      : table_(std::move(table)), hash_(std::move(hash)) {}

  std::string name() const override { return "gpt2"; }
  int64_t vocab_size() const override { return table_->size() + 1; }
  int32_t eot() const override { return table_->size(); }
  std::string hash() const override { return hash_; }
  std::unique_ptr<Tokenizer> clone() const override { return std::make_unique<Gpt2Tokenizer>(table_, hash_); }

  void encode(std::string_view text, std::vector<int32_t>& out) override {
    while (!text.empty()) {
      const std::string_view piece = text.substr(0, gpt2_piece(text));
      cache_.encode(piece, out, [this](std::string_view p, std::vector<int32_t>& to) { merge(p, to); });
      text.remove_prefix(piece.size());
    }
  }

  void decode(const int32_t* ids, int64_t count, std::string& out, bool) const override {
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] < 0 || ids[i] > eot())
        fail(ExitCode::data, "token {} at position {}: this gpt2 tokenizer has ids 0 to {}", ids[i], i,
             eot());
      if (ids[i] == eot())
        out += kEndOfText;
      else
        out += table_->token(ids[i]);
    }
  }

  int64_t text_bytes(int32_t id) const override {
    return id < 0 || id >= eot() ? 0 : static_cast<int64_t>(table_->token(id).size());
  }

  int64_t safe_cut(std::string_view text) const override { return gpt2_safe_cut(text); }

 private:
  void merge(std::string_view piece, std::vector<int32_t>& out) const {
    if (const int32_t whole = table_->find(piece); whole >= 0)
      out.push_back(whole);
    else
      bpe_merge(*table_, piece, out);
  }

  std::shared_ptr<const BpeTable> table_;
  std::string hash_;
  PieceCache cache_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::string& rank_file) {
  auto table = std::make_shared<const BpeTable>(read_rank_file(rank_file));
  std::string hash = hash_of(*table);
  return std::make_unique<Gpt2Tokenizer>(std::move(table), std::move(hash));
}

TokenizerKind gpt2_kind() {
  return {.name = "gpt2",
          .help = "a tiktoken rank file, 50257 ids.",
          .file = "tiktoken file of merge ranks (lines of `base64 rank`)",
          .file_example = "RANKS.tiktoken",
          .file_option = "--ranks or LTRAIN_GPT2_RANKS",
          .file_variable = "LTRAIN_GPT2_RANKS",
          .vocab_size = 50257,
          .make = [](const std::string& path, const DocumentTokens&) { return make_gpt2_tokenizer(path); }};
}

}  // namespace ltrain::data
