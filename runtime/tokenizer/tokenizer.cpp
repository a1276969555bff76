#include "runtime/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"

namespace ltrain::data {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  using Tokenizer::decode;
  using Tokenizer::encode;
  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return 257; }
  int32_t eot() const override { return 256; }
  std::string hash() const override {
    constexpr std::string_view kRule = "ltrain byte tokenizer 1";
    return fmt::format("{:016x}", XXH3_64bits(kRule.data(), kRule.size()));
  }
  std::unique_ptr<Tokenizer> clone() const override { return make_byte_tokenizer(); }

  void encode(std::string_view text, std::vector<int32_t>& out) override {
    const size_t at = out.size();
    out.resize(at + text.size());
    for (size_t i = 0; i < text.size(); ++i) out[at + i] = static_cast<unsigned char>(text[i]);
  }

  void decode(const int32_t* ids, int64_t count, std::string& out, bool) const override {
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] < 0 || ids[i] > 256)
        fail(ExitCode::data, "token {} at position {}: the byte tokenizer has ids 0 to 256", ids[i], i);
      if (ids[i] == 256)
        out += kEndOfText;
      else
        out += static_cast<char>(ids[i]);
    }
  }

  int64_t text_bytes(int32_t id) const override { return id >= 0 && id < 256 ? 1 : 0; }

  int64_t safe_cut(std::string_view text) const override { return static_cast<int64_t>(text.size()); }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& path,
                                          const DocumentTokens& tokens) {
  if (name == "huggingface") {
    if (path.empty())
      fail(ExitCode::usage, "tokenizer huggingface needs its tokenizer.json, or the folder that has it");
    return make_huggingface_tokenizer(path, tokens);
  }
  if (name == "byte" || name == "gpt2")
    for (const std::string* token : {&tokens.bos, &tokens.eos})
      if (!token->empty())
        fail(ExitCode::usage,
             "tokenizer {}: which token begins or ends a document is not a setting of it, but {} is given",
             name, *token);
  if (name == "byte") {
    if (!path.empty())
      fail(ExitCode::usage,
           "tokenizer byte takes no file, but {} is given; leave it out, or use gpt2 or huggingface", path);
    return make_byte_tokenizer();
  }
  if (name == "gpt2") {
    if (path.empty())
      fail(ExitCode::usage,
           "tokenizer gpt2 needs its merge ranks: name a tiktoken file (lines of `base64 rank`) with --ranks "
           "or in LTRAIN_GPT2_RANKS");
    return make_gpt2_tokenizer(path);
  }
  fail(ExitCode::usage,
       "tokenizer {}: not known; byte, gpt2 and huggingface are, or a tokenizer.json or its folder", name);
}

}  // namespace ltrain::data
