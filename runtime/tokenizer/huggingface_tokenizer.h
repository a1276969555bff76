// A tokenizer as Hugging Face's tokenizer.json describes one: added tokens are cut out, the rest is
// normalized, divided into pieces, and each piece is merged by byte-pair ranks.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/tokenizer/added_tokens.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/merge_cuts.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/piece_cache.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::data {

/// What a tokenizer.json says, as tables. Const and shared by threads, but for `normalizer` and
/// `pre_tokenizer`, which are copied.
struct HuggingfaceTables {
  std::string hash;
  // The model.
  BpeTable table{{}, {}};
  bool byte_level = false;     ///< symbols are bytes; else characters
  bool ignore_merges = false;  ///< a piece that is a token is that token
  bool byte_fallback = false, fuse_unk = false;
  bool metaspace_words = false;           ///< the words of each_metaspace_word() merge apart
  std::unique_ptr<const MergeCuts> cuts;  ///< where all that stands between its cuts merges apart
  int32_t unk = -1;
  std::vector<int32_t> byte_tokens;  ///< byte_fallback: ids of <0x00> to <0xFF>, -1 where there is none
  // Before the model.
  std::vector<AddedToken> added;
  bool specials_in_text = true;  ///< false: special tokens are never found in text
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  // After it.
  std::vector<int32_t> before, after;  ///< what the post-processor puts around a text
  /// Bytes of each id in text; empty where there is no token.
  std::vector<std::string> shown;
  bool strip_first_space = false;  ///< of a decoded text
  std::vector<std::pair<int32_t, std::string>>
      shown_first;                    ///< bytes of ids that differ at the begin of a text
  bool joined_by_spaces = false;      ///< a space between the tokens of a decoded text
  std::vector<std::string> contents;  ///< tokens by id as the file writes them
  int32_t bos = -1, eot = -1;         ///< -1: the file does not say
};

class HuggingfaceTokenizer final : public Tokenizer {
 public:
  using Tokenizer::decode;
  using Tokenizer::encode;
  explicit HuggingfaceTokenizer(std::shared_ptr<const HuggingfaceTables> tables);

  std::string name() const override { return "huggingface"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(tables_->contents.size()); }
  int32_t eot() const override { return tables_->eot; }
  int32_t bos() const override { return tables_->bos; }
  int32_t find(std::string_view token) const override;
  std::string hash() const override { return tables_->hash; }
  std::unique_ptr<Tokenizer> clone() const override;
  void set_split_special_tokens(bool split) override;
  void encode(std::string_view text, std::vector<int32_t>& out) override;
  void decode(const int32_t* ids, int64_t count, std::string& out, bool begin) const override;
  int64_t text_bytes(int32_t id) const override;
  std::vector<int32_t> before_text() const override { return tables_->before; }
  void add_special_tokens(std::vector<int32_t>& ids) const override;
  int64_t safe_cut(std::string_view text) const override;

 private:
  void encode_part(std::string_view part, bool first, std::vector<int32_t>& out);
  void encode_text(std::string& text, bool first, std::vector<int32_t>& out);
  void encode_piece(std::string_view piece, std::vector<int32_t>& out) const;

  std::shared_ptr<const HuggingfaceTables> tables_;
  AddedTokenSearch raw_, normalized_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  PieceCache cache_;
  bool by_words_ = true, split_special_tokens_ = false;
  std::vector<AddedTokenSearch::Part> raw_parts_, parts_;
  std::vector<PreTokenizer::Piece> pieces_;
  std::string work_, segment_;
};

}  // namespace ltrain::data
