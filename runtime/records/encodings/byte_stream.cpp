#include "runtime/records/encodings/byte_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ltrain::records {
namespace {

constexpr size_t kBufferBytes = 1 << 17;
constexpr int kGzipWindow = 15 + 16;  // zlib: the largest window, and a gzip header
constexpr int kZstdWindowLog = 31;    // 2 GiB, the largest that zstd --long writes

class FileStream final : public ByteStream {
 public:
  explicit FileStream(std::shared_ptr<const data::InputFile> file) : file_(std::move(file)) {}

  int64_t read_some(void* to, int64_t bytes) override {
    const int64_t n = file_->read_some(to, at_, bytes);
    at_ += n;
    return n;
  }
  int64_t consumed() const override { return at_; }

 private:
  std::shared_ptr<const data::InputFile> file_;
  int64_t at_ = 0;
};

/// Compressed blocks of a file, for a decompressor.
class CompressedStream : public ByteStream {
 public:
  CompressedStream(std::shared_ptr<const data::InputFile> file, std::string name)
      : name_(std::move(name)), file_(std::move(file)), block_(kBufferBytes) {}
  int64_t consumed() const override { return file_.consumed() - static_cast<int64_t>(size_ - used_); }

 protected:
  /// Bytes that the decompressor has not read yet; empty at the end of the file.
  std::string_view rest() {
    if (used_ == size_) {
      size_ = static_cast<size_t>(file_.read_some(block_.data(), static_cast<int64_t>(block_.size())));
      used_ = 0;
    }
    return {block_.data() + used_, size_ - used_};
  }
  void use(size_t bytes) { used_ += bytes; }
  [[noreturn]] void damaged(const char* kind, const std::string& why) const {
    fail(ExitCode::data, "{}: byte offset {}: damaged {} data: {}", name_, consumed(), kind, why);
  }

  std::string name_;

 private:
  FileStream file_;
  std::vector<char> block_;
  size_t size_ = 0, used_ = 0;
};

class GzipStream final : public CompressedStream {
 public:
  GzipStream(std::shared_ptr<const data::InputFile> file, std::string name)
      : CompressedStream(std::move(file), std::move(name)) {
    LT_CHECK(::inflateInit2(&z_, kGzipWindow) == Z_OK, "expected zlib {} to start, got an error",
             ZLIB_VERSION);
  }
  ~GzipStream() override { ::inflateEnd(&z_); }

  int64_t read_some(void* to, int64_t bytes) override {
    int64_t done = 0;
    while (done < bytes && !at_end_) done += inflate_some(static_cast<char*>(to) + done, bytes - done);
    return done;
  }

 private:
  int64_t inflate_some(char* to, int64_t bytes) {
    const std::string_view in = rest();
    if (between_members_) {
      if (!begin_member(in)) return 0;
    } else if (in.empty()) {
      damaged("gzip", "the file ends within a member; it is truncated: copy it again");
    }
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    z_.avail_in = static_cast<uInt>(in.size());
    z_.next_out = reinterpret_cast<Bytef*>(to);
    z_.avail_out = static_cast<uInt>(std::min<int64_t>(bytes, 1 << 30));
    const uInt room = z_.avail_out;
    const int result = ::inflate(&z_, Z_NO_FLUSH);
    use(in.size() - z_.avail_in);
    if (result == Z_STREAM_END) {
      between_members_ = true;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      damaged("gzip", z_.msg ? z_.msg : "unknown to zlib");
    }
    return room - z_.avail_out;
  }

  /// Members follow one another in a file, perhaps with zeros after the last one.
  bool begin_member(std::string_view in) {
    if (!in.empty() && in[0] == '\0' && !first_) {
      use(1);
      return false;
    }
    at_end_ = in.empty();
    if (at_end_) return false;
    if (!first_) ::inflateReset(&z_);
    first_ = between_members_ = false;
    return true;
  }

  z_stream z_{};
  bool first_ = true, between_members_ = true, at_end_ = false;
};

class ZstdStream final : public CompressedStream {
 public:
  ZstdStream(std::shared_ptr<const data::InputFile> file, std::string name)
      : CompressedStream(std::move(file), std::move(name)), z_(::ZSTD_createDStream(), &::ZSTD_freeDStream) {
    LT_CHECK(z_ != nullptr, "expected a decompressor of zstd, got none");
    ::ZSTD_DCtx_setParameter(z_.get(), ZSTD_d_windowLogMax, kZstdWindowLog);
  }

  int64_t read_some(void* to, int64_t bytes) override {
    ZSTD_outBuffer out{to, static_cast<size_t>(bytes), 0};
    while (out.pos < out.size) {
      const std::string_view in = rest();
      if (in.empty() && !within_frame_) break;
      ZSTD_inBuffer from{in.data(), in.size(), 0};
      const size_t before = out.pos;
      const size_t result = ::ZSTD_decompressStream(z_.get(), &out, &from);
      use(from.pos);
      if (::ZSTD_isError(result)) damaged("zstd", ::ZSTD_getErrorName(result));
      within_frame_ = result != 0;
      if (in.empty() && within_frame_ && out.pos == before)
        damaged("zstd", "the file ends within a frame; it is truncated: copy it again");
    }
    return static_cast<int64_t>(out.pos);
  }

 private:
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> z_;
  bool within_frame_ = false;
};

}  // namespace

Compression compression_of(std::string_view head) {
  if (head.starts_with("\x1F\x8B")) return Compression::gzip;
  if (head.starts_with("\x28\xB5\x2F\xFD")) return Compression::zstd;
  return Compression::none;
}

std::unique_ptr<ByteStream> open_stream(std::shared_ptr<const data::InputFile> file, std::string name,
                                        Compression compression) {
  if (compression == Compression::gzip) return std::make_unique<GzipStream>(std::move(file), std::move(name));
  if (compression == Compression::zstd) return std::make_unique<ZstdStream>(std::move(file), std::move(name));
  return std::make_unique<FileStream>(std::move(file));
}

std::string beginning(const std::shared_ptr<const data::InputFile>& file, const std::string& name,
                      Compression compression, int64_t bytes) {
  std::string head(static_cast<size_t>(bytes), '\0');
  head.resize(static_cast<size_t>(open_stream(file, name, compression)->read_some(head.data(), bytes)));
  return head;
}

StreamReader::StreamReader(std::unique_ptr<ByteStream> stream, std::string name)
    : stream_(std::move(stream)), name_(std::move(name)) {}

bool StreamReader::read(void* to, int64_t bytes, const char* what) {
  int64_t done = 0;
  while (done < bytes) {
    if (at_ == buffer_.size()) {
      buffer_.resize(kBufferBytes);
      at_ = 0;
      buffer_.resize(
          static_cast<size_t>(stream_->read_some(buffer_.data(), static_cast<int64_t>(kBufferBytes))));
      if (buffer_.empty()) {
        if (done == 0) return false;
        ends_within(bytes - done, what);
      }
    }
    const auto n = std::min<size_t>(static_cast<size_t>(bytes - done), buffer_.size() - at_);
    std::memcpy(static_cast<char*>(to) + done, buffer_.data() + at_, n);
    at_ += n;
    done += static_cast<int64_t>(n);
    offset_ += static_cast<int64_t>(n);
  }
  return true;
}

void StreamReader::read_text(std::string& to, int64_t bytes, const char* what) {
  to.clear();
  while (static_cast<int64_t>(to.size()) < bytes) {
    const size_t begin = to.size();
    const int64_t n = std::min<int64_t>(bytes - static_cast<int64_t>(begin), 1 << 20);
    to.resize(begin + static_cast<size_t>(n));
    if (!read(to.data() + begin, n, what)) ends_within(bytes - static_cast<int64_t>(begin), what);
  }
}

void StreamReader::skip(int64_t bytes, const char* what) {
  char block[4096];
  for (int64_t n; bytes > 0; bytes -= n) {
    n = std::min<int64_t>(bytes, sizeof block);
    if (!read(block, n, what)) ends_within(bytes, what);
  }
}

void StreamReader::ends_within(int64_t missing, const char* what) const {
  fail(ExitCode::data,
       "{}: the file ends within {} at byte offset {}; {} more bytes are needed. It is truncated: copy it "
       "again",
       name_, what, offset_, missing);
}

}  // namespace ltrain::records
