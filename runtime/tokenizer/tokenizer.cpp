#include "runtime/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

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

TokenizerKind byte_kind() {
  return {.name = "byte",
          .help = "bytes and an end mark, 257 ids.",
          .vocab_size = 257,
          .text_bytes = 1,
          .make = [](const std::string&, const DocumentTokens&) { return make_byte_tokenizer(); }};
}

}  // namespace ltrain::data
