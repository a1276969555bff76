// Text to token ids and back.
//
// Encoding takes any bytes. For byte and gpt2 text that looks like a special token is text; a tokenizer.json
// says which tokens are found in text ("added_tokens"), and so it is done. What begins or ends a text is only
// ever added by the caller.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::data {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";  ///< how the end-of-text id decodes

/// Not for several threads at once (it caches); each takes a clone(), which shares the tables.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;       ///< "byte", "gpt2", "huggingface"
  virtual int64_t vocab_size() const = 0;     ///< ids are 0 .. vocab_size-1
  virtual int32_t eot() const = 0;            ///< end-of-text id; -1: the tokenizer's files name none
  virtual int32_t bos() const { return -1; }  ///< begin-of-text id; -1: none
  virtual int32_t find(std::string_view token) const { return -1; }  ///< id of a token by its text; -1: none
  virtual std::string hash() const = 0;  ///< of everything that decides the ids; 16 hex digits
  virtual std::unique_ptr<Tokenizer> clone() const = 0;
  /// True: encode() treats special tokens in text as text, as `split_special_tokens` of transformers and
  /// `disallowed_special=()` of tiktoken do. Tokenizers whose encode() never looks for special tokens ignore
  /// it.
  virtual void set_split_special_tokens(bool split) {}

  virtual void encode(std::string_view text, std::vector<int32_t>& out) = 0;  ///< appends
  /// Appends; Error on a bad id. `begin`: the ids begin a text; else they go on in one.
  virtual void decode(const int32_t* ids, int64_t count, std::string& out, bool begin = true) const = 0;
  /// Bytes of text that an id stands for; 0: of an id that is a mark, as of the end of a document, or none.
  virtual int64_t text_bytes(int32_t id) const = 0;
  /// What the tokenizer's post-processor puts before a text.
  virtual std::vector<int32_t> before_text() const { return {}; }
  /// Puts around the ids of a text what the tokenizer's post-processor puts there.
  virtual void add_special_tokens(std::vector<int32_t>& ids) const {}

  /// The longest prefix (bytes) of `text` after which a text that goes on may be cut, so that the ids of the
  /// two parts are the ids of the whole; 0 if there is none.
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

/// Id = byte value 0..255, end of text = 256; vocabulary 257.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Byte-level BPE of GPT-2 with the merge ranks of a tiktoken file (lines of `base64 rank`). End of text is
/// the id after the last rank: 50256 with the published file, vocabulary 50257.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::string& rank_file);

/// Texts of the tokens that begin and end a document; "": those that tokenizer_config.json names, if it is
/// there.
struct DocumentTokens {
  std::string bos, eos;
};

/// Of a tokenizer.json, a SentencePiece model (*.model) or Mistral's tekken.json, or of the folder that has
/// one; where it has several, the first of them in this order. Error (data) that names what is wrong or not
/// supported.
std::unique_ptr<Tokenizer> make_huggingface_tokenizer(const std::string& path,
                                                      const DocumentTokens& tokens = {});

/// By name: "byte", "gpt2" with its rank file, "huggingface" with its tokenizer.json or folder. Error (usage)
/// for another name, or a file that is missing or too many.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& path,
                                          const DocumentTokens& tokens = {});

}  // namespace ltrain::data
