// Compression codecs of Parquet and Arrow files.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/records/encodings/damage.h"

namespace ltrain::records {

enum class Codec : uint8_t {
  none,
  snappy,
  gzip,  ///< gzip or zlib, in one or more members
  zstd,
  lz4_raw,     ///< one block without a frame
  lz4_hadoop,  ///< Parquet's old LZ4: blocks in Hadoop's framing, an LZ4 frame, or one raw block
  brotli,
  lz4_frame,
};

const char* codec_name(Codec codec);

/// Largest number of bytes for one compressed page or buffer; larger ones are refused.
constexpr int64_t kMostBytes = int64_t{1} << 30;

/// Largest output that `bytes` bytes of input can have with this codec, at most kMostBytes.
int64_t largest_output(Codec codec, int64_t bytes);

/// Decompresses `in` to exactly out.size() bytes. Throws Error (data), "NAME: ...", for any other size and
/// for damage. Nothing is written outside `out`.
void decompress(Codec codec, Bytes in, std::span<uint8_t> out, const std::string& name);

/// A buffer that is used again. Its memory is not cleared, so that the system provides pages only when a
/// decompressor writes to them: a false size in a file takes address space, and no memory.
class Buffer {
 public:
  /// Discards the content and sets the size. The address stays valid until the next call.
  std::span<uint8_t> reset(int64_t bytes);
  Bytes bytes() const { return {data_.get(), static_cast<size_t>(size_)}; }

 private:
  std::unique_ptr<uint8_t[]> data_;
  int64_t size_ = 0, capacity_ = 0;
};

/// Decompresses to `size` bytes in `buffer`, and returns them; with Codec::none returns `in`. Throws Error
/// (data), "NAME: ...", for a size that `in` cannot have.
Bytes decompress_to(Buffer& buffer, Codec codec, Bytes in, int64_t size, const std::string& name);

}  // namespace ltrain::records
