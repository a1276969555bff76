// A file as a stream of bytes, decompressed on the way.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/files/file.h"

namespace ltrain::records {

enum class Compression : uint8_t { none, gzip, zstd };

/// Compression by the first bytes of a file.
Compression compression_of(std::string_view head);

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Reads `bytes` bytes; fewer only at the end. Throws Error (data) with file and offset for damaged data.
  virtual int64_t read_some(void* to, int64_t bytes) = 0;
  virtual int64_t consumed() const = 0;  ///< bytes of the file that were read so far
};

/// Opens a stream at the begin of the file. `name`: for messages.
std::unique_ptr<ByteStream> open_stream(std::shared_ptr<const data::InputFile> file, std::string name,
                                        Compression compression);

/// First `bytes` bytes of the decompressed file; fewer if it ends before.
std::string beginning(const std::shared_ptr<const data::InputFile>& file, const std::string& name,
                      Compression compression, int64_t bytes);

/// Exact reads from a stream, through a buffer.
class StreamReader {
 public:
  StreamReader(std::unique_ptr<ByteStream> stream, std::string name);

  /// Reads exactly `bytes` bytes. Returns false at the end of the stream. Throws Error (data) if the stream
  /// ends within them, with `what` as their name.
  bool read(void* to, int64_t bytes, const char* what);
  /// Reads `bytes` bytes into `to`, in blocks, so that a false length cannot take memory.
  void read_text(std::string& to, int64_t bytes, const char* what);
  void skip(int64_t bytes, const char* what);
  int64_t offset() const { return offset_; }  ///< bytes of the decompressed stream that were read
  int64_t consumed() const { return stream_->consumed(); }
  const std::string& name() const { return name_; }

 private:
  [[noreturn]] void ends_within(int64_t missing, const char* what) const;

  std::unique_ptr<ByteStream> stream_;
  std::string name_, buffer_;
  size_t at_ = 0;  // first unread byte of the buffer
  int64_t offset_ = 0;
};

}  // namespace ltrain::records
