// Files of token ids alone: those of llm.c and nanoGPT.
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "runtime/records/format.h"

namespace ltrain::records {
namespace {

constexpr int32_t kGpt2EndOfText = 50256, kLlama3BeginOfText = 128000;
constexpr size_t kHeaderInts = 256;
constexpr int64_t kUntilEnd = -1;

struct Llmc {
  int32_t magic, version;
  int64_t bytes;  // bytes of a token
  int32_t separator;
};
constexpr Llmc kLlmc[] = {{20240520, 1, 2, kGpt2EndOfText}, {20240801, 7, 4, kLlama3BeginOfText}};

const Llmc* llmc_of(const int32_t* header) {
  for (const Llmc& l : kLlmc)
    if (header[0] == l.magic && header[1] == l.version) return &l;
  return nullptr;
}

/// Documents between separators.
class TokenSource final : public RecordSource {
 public:
  /// `count`: tokens of the file, or kUntilEnd.
  TokenSource(StreamReader in, int64_t token_bytes, int32_t separator, int64_t count)
      : in_(std::move(in)), bytes_(token_bytes), separator_(separator), count_(count) {}

  bool next(Record& record) override {
    record = {};
    record.has_tokens = true;
    for (int32_t id; read_id(id);) {
      if (id != separator_) {
        record.tokens.push_back(id);
        if (static_cast<int64_t>(record.tokens.size()) * 4 > kMaxRecordBytes)
          fail(ExitCode::data, "{}: token {}: a document of more than {} MiB; documents end with token {}",
               in_.name(), read_, kMaxRecordBytes >> 20, separator_);
      } else if (!record.tokens.empty()) {
        break;
      }
    }
    document_ += !record.tokens.empty();
    return !record.tokens.empty();
  }

  std::string position() const override { return fmt::format("document {}", document_); }
  int64_t consumed() const override { return in_.consumed(); }

 private:
  bool read_id(int32_t& id) {
    if (read_ == count_) return false;
    uint32_t raw = 0;
    if (!in_.read(&raw, bytes_, "a token")) {
      if (count_ != kUntilEnd)
        fail(ExitCode::data,
             "{}: the file ends after {} tokens; its header says {}. It is truncated: copy it again",
             in_.name(), read_, count_);
      return false;
    }
    if (raw > INT32_MAX)
      fail(ExitCode::data, "{}: token {}: id {}; ids are below 2^31", in_.name(), read_, raw);
    ++read_;
    id = static_cast<int32_t>(raw);
    return true;
  }

  StreamReader in_;
  int64_t bytes_;
  int32_t separator_;
  int64_t count_, read_ = 0, document_ = 0;
};

bool is_llmc(std::string_view head) {
  int32_t header[2];
  if (head.size() < sizeof header) return false;
  std::memcpy(header, head.data(), sizeof header);
  return llmc_of(header) != nullptr;
}

/// llm.c: a header of 256 i32, then ids in u16 (GPT-2) or u32 (Llama 3). Each document begins with its token
/// of the end (GPT-2) or the begin (Llama 3) of a text, which is left out.
std::unique_ptr<RecordSource> open_llmc(std::unique_ptr<ByteStream> stream, std::string name,
                                        const Selection&) {
  StreamReader in(std::move(stream), std::move(name));
  std::array<int32_t, kHeaderInts> header{};
  const bool any = in.read(header.data(), sizeof header, "the header");
  const Llmc* form = any ? llmc_of(header.data()) : nullptr;
  if (!form || header[2] < 0)
    fail(ExitCode::data,
         "{}: expected a header of llm.c for GPT-2 or Llama 3, got magic {}, version {}, {} tokens",
         in.name(), header[0], header[1], header[2]);
  return std::make_unique<TokenSource>(std::move(in), form->bytes, form->separator, header[2]);
}

/// nanoGPT: ids in u16 without a header. Documents end with GPT-2's token 50256, which is left out.
std::unique_ptr<RecordSource> open_nanogpt(std::unique_ptr<ByteStream> stream, std::string name,
                                           const Selection&) {
  return std::make_unique<TokenSource>(StreamReader(std::move(stream), std::move(name)), 2, kGpt2EndOfText,
                                       kUntilEnd);
}

}  // namespace

Format llmc_format() {
  return {.name = "llmc", .default_field = "tokens", .recognise = &is_llmc, .open = &streamed<&open_llmc>};
}
Format nanogpt_format() {
  return {.name = "nanogpt", .default_field = "tokens", .open = &streamed<&open_nanogpt>};
}

}  // namespace ltrain::records
