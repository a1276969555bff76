// A tokenizer described by Hugging Face's tokenizer.json. Added tokens are separated first. The remaining
// text is normalized and split into pieces, and each piece is merged by byte-pair ranks.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/formats/added_tokens.h"
#include "runtime/tokenizer/formats/merge_cuts.h"
#include "runtime/tokenizer/formats/normalizer.h"
#include "runtime/tokenizer/formats/pre_tokenizer.h"
#include "runtime/tokenizer/piece_cache.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::data {

/// Contents of a tokenizer.json as tables. Const and shared by threads, except `normalizer` and
/// `pre_tokenizer`, which are copied.
struct HuggingfaceTables {
  std::string hash;
  // The model.
  BpeTable table{{}, {}};
  bool byte_level = false;     ///< symbols are bytes; else characters
  bool ignore_merges = false;  ///< a piece that is a token is not merged from symbols
  bool byte_fallback = false, fuse_unk = false;
  bool metaspace_words = false;           ///< each word of each_metaspace_word() merges separately
  std::unique_ptr<const MergeCuts> cuts;  ///< text between its cuts merges separately; null: no cuts
  int32_t unk = -1;
  std::vector<int32_t> byte_tokens;  ///< byte_fallback: ids of <0x00> to <0xFF>; -1: missing
  // Steps before the model.
  std::vector<AddedToken> added;
  bool specials_in_text = true;  ///< false: special tokens are never found in text
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  // Steps after the model.
  std::vector<int32_t> before, after;  ///< tokens that the post-processor adds before and after a text
  /// Bytes of each id in decoded text; empty for an unused id.
  std::vector<std::string> shown;
  bool strip_first_space = false;  ///< remove the first space of decoded text
  std::vector<std::pair<int32_t, std::string>>
      shown_first;                    ///< ids with different bytes at the start of a text
  bool joined_by_spaces = false;      ///< put a space between tokens of decoded text
  std::vector<std::string> contents;  ///< tokens by id as written in the file
  int32_t bos = -1, eot = -1;         ///< -1: not given by the file
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
  bool encode_marked(std::string_view text, const AddedTokenSearch::Allowed& allowed,
                     std::vector<int32_t>& ids, std::vector<EncodedPart>& parts) override;
  bool special(int32_t id) const override {
    return id >= 0 && id < vocab_size() && specials_[static_cast<size_t>(id)];
  }
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
  std::vector<bool> specials_;                // special ids
  std::unique_ptr<AddedTokenSearch> marked_;  // raw_ for encode_marked(), with all special tokens
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  PieceCache cache_;
  bool by_words_ = true, split_special_tokens_ = false;
  std::vector<AddedTokenSearch::Part> raw_parts_, parts_;
  std::vector<PreTokenizer::Piece> pieces_;
  std::string work_, segment_;
};

/// Folder of a tokenizer's files: `path` itself, or the folder that it is in; "" for no path.
std::string tokenizer_folder(const std::string& path);

}  // namespace ltrain::data
