// Conversion of text to token ids and back.
//
// Encoding accepts any bytes. For byte and gpt2, text that looks like a special token is ordinary text. A
// tokenizer.json lists the tokens that are matched in text ("added_tokens"). Tokens that begin or end a text
// are added only by the caller.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::data {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";  ///< decoded text of the end-of-text id

/// A part of a text that encode_marked() encoded: an added token, or the text between added tokens.
struct EncodedPart {
  size_t begin = 0, end = 0;  ///< bytes of the text
  size_t ids_begin = 0, ids_end = 0;
  bool special = false;  ///< a special token
};

/// Not thread-safe, because it caches. Each thread needs a clone(), which shares the tables.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;       ///< name of its kind (tokenizer_kinds.h)
  virtual int64_t vocab_size() const = 0;     ///< ids are 0 .. vocab_size-1
  virtual int32_t eot() const = 0;            ///< end-of-text id; -1: not named by the tokenizer's files
  virtual int32_t bos() const { return -1; }  ///< begin-of-text id; -1: none
  /// Id of a token by its text; -1: none.
  virtual int32_t find(std::string_view token) const { return -1; }
  virtual std::string hash() const = 0;  ///< hash of everything that determines the ids; 16 hex digits
  virtual std::unique_ptr<Tokenizer> clone() const = 0;
  /// True: encode() treats special tokens in text as text, as `split_special_tokens` of transformers and
  /// `disallowed_special=()` of tiktoken do. Tokenizers whose encode() never looks for special tokens ignore
  /// it.
  virtual void set_split_special_tokens(bool split) {}

  virtual void encode(std::string_view text, std::vector<int32_t>& out) = 0;  ///< appends to `out`
  /// Encodes a text whose special tokens are found only in bytes [begin, end) for which `allowed` is true,
  /// even if split_special_tokens is set. Appends ids and parts. Returns false for a tokenizer that finds no
  /// special tokens.
  virtual bool encode_marked(std::string_view text,
                             const std::function<bool(size_t begin, size_t end)>& allowed,
                             std::vector<int32_t>& ids, std::vector<EncodedPart>& parts) {
    return false;
  }
  virtual bool special(int32_t id) const { return id >= 0 && (id == eot() || id == bos()); }
  /// Appends the text of the ids. Throws Error for an invalid id. `begin`: the ids are at the start of a
  /// text; else they continue one.
  virtual void decode(const int32_t* ids, int64_t count, std::string& out, bool begin = true) const = 0;
  /// Bytes of text that an id represents; 0: a marker such as end of document, or an invalid id.
  virtual int64_t text_bytes(int32_t id) const = 0;
  /// Ids that the tokenizer's post-processor puts before a text.
  virtual std::vector<int32_t> before_text() const { return {}; }
  /// Adds to the ids of a text the special tokens of the tokenizer's post-processor.
  virtual void add_special_tokens(std::vector<int32_t>& ids) const {}

  /// Longest prefix (bytes) of an unfinished text after which it may be cut, such that the ids of the two
  /// parts are the ids of the full text; 0: none.
  virtual int64_t safe_cut(std::string_view text) const = 0;

  std::vector<int32_t> encode(std::string_view text) {
    std::vector<int32_t> ids;
    encode(text, ids);
    return ids;
  }
  std::string decode(const std::vector<int32_t>& ids) const {
    std::string text;
    decode(ids.data(), static_cast<int64_t>(ids.size()), text);
    return text;
  }
};

/// Byte tokenizer: id = byte value 0..255, end of text = 256; vocabulary 257.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Byte-level BPE of GPT-2 with the merge ranks of a tiktoken file (lines of `base64 rank`). The end-of-text
/// id follows the last rank: 50256 with the published file, vocabulary 50257.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::string& rank_file);

/// Texts of the tokens that begin and end a document; "": tokens named in tokenizer_config.json, if it
/// exists.
struct DocumentTokens {
  std::string bos, eos;
};

/// Makes a tokenizer from a tokenizer.json, a SentencePiece model (*.model) or Mistral's tekken.json, or from
/// the folder with one. If a folder has several, the first in this order is used. Throws Error (data) with
/// the invalid or unsupported part.
std::unique_ptr<Tokenizer> make_huggingface_tokenizer(const std::string& path,
                                                      const DocumentTokens& tokens = {});

}  // namespace ltrain::data
