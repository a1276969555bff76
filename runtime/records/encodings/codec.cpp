#include "runtime/records/encodings/codec.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <lz4frame.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace ltrain::records {
namespace {

using Output = std::span<uint8_t>;

const char* chars(Bytes bytes) { return reinterpret_cast<const char*>(bytes.data()); }
char* chars(Output bytes) { return reinterpret_cast<char*>(bytes.data()); }

/// Bytes that were written, or -1 for damage. Each function takes all of `in`.
int64_t snappy(Bytes in, Output out) {
  size_t size = 0;
  if (snappy_uncompressed_length(chars(in), in.size(), &size) != SNAPPY_OK || size > out.size()) return -1;
  size = out.size();
  return snappy_uncompress(chars(in), in.size(), chars(out), &size) == SNAPPY_OK ? int64_t(size) : -1;
}

int64_t gzip(Bytes in, Output out) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 32) != Z_OK) return -1;  // 32: gzip and zlib
  // The sizes fit: inputs and outputs have at most kMostBytes.
  stream.next_in = const_cast<uint8_t*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  int state = inflate(&stream, Z_FINISH);
  while (state == Z_STREAM_END && stream.avail_in > 0 && inflateReset(&stream) == Z_OK)
    state = inflate(&stream, Z_FINISH);  // the next member
  const int64_t written = state == Z_STREAM_END ? int64_t(out.size() - stream.avail_out) : -1;
  inflateEnd(&stream);
  return written;
}

int64_t zstd(Bytes in, Output out) {
  thread_local const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                                ZSTD_freeDCtx);
  const size_t written = ZSTD_decompressDCtx(context.get(), out.data(), out.size(), in.data(), in.size());
  return ZSTD_isError(written) ? -1 : int64_t(written);
}

int64_t lz4_raw(Bytes in, Output out) {
  return LZ4_decompress_safe(chars(in), chars(out), static_cast<int>(in.size()),
                             static_cast<int>(out.size()));
}

int64_t lz4_frame(Bytes in, Output out) {
  LZ4F_dctx* made = nullptr;
  if (LZ4F_isError(LZ4F_createDecompressionContext(&made, LZ4F_VERSION))) return -1;
  const std::unique_ptr<LZ4F_dctx, size_t (*)(LZ4F_dctx*)> context(made, LZ4F_freeDecompressionContext);
  size_t read = 0, written = 0, hint = 1;
  while (read < in.size()) {
    size_t in_bytes = in.size() - read, out_bytes = out.size() - written;
    hint = LZ4F_decompress(made, out.data() + written, &out_bytes, in.data() + read, &in_bytes, nullptr);
    if (LZ4F_isError(hint) || (in_bytes == 0 && out_bytes == 0)) return -1;
    read += in_bytes;
    written += out_bytes;
  }
  return hint == 0 ? int64_t(written) : -1;
}

int64_t brotli(Bytes in, Output out) {
  const std::unique_ptr<BrotliDecoderState, void (*)(BrotliDecoderState*)> state(
      BrotliDecoderCreateInstance(nullptr, nullptr, nullptr), BrotliDecoderDestroyInstance);
  size_t in_left = in.size(), out_left = out.size();
  const uint8_t* from = in.data();
  uint8_t* to = out.data();
  const auto result = BrotliDecoderDecompressStream(state.get(), &in_left, &from, &out_left, &to, nullptr);
  return result == BROTLI_DECODER_RESULT_SUCCESS && in_left == 0 ? int64_t(out.size() - out_left) : -1;
}

uint32_t big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}

/// Blocks with two sizes each in front: output, input.
int64_t lz4_hadoop_blocks(Bytes in, Output out) {
  size_t written = 0;
  while (!in.empty()) {
    if (in.size() < 8) return -1;
    const uint32_t output = big_endian(in.data()), input = big_endian(in.data() + 4);
    in = in.subspan(8);
    if (input > in.size() || output > out.size() - written) return -1;
    if (lz4_raw(in.first(input), out.subspan(written, output)) != output) return -1;
    in = in.subspan(input);
    written += output;
  }
  return int64_t(written);
}

int64_t lz4_hadoop(Bytes in, Output out) {
  if (lz4_hadoop_blocks(in, out) == int64_t(out.size())) return int64_t(out.size());
  constexpr std::array<uint8_t, 4> kFrame{0x04, 0x22, 0x4D, 0x18};
  if (in.size() >= 4 && std::equal(kFrame.begin(), kFrame.end(), in.begin())) return lz4_frame(in, out);
  return lz4_raw(in, out);
}

int64_t run(Codec codec, Bytes in, Output out) {
  switch (codec) {
    case Codec::none:
      if (in.size() == out.size() && !in.empty()) std::memcpy(out.data(), in.data(), in.size());
      return int64_t(in.size());
    case Codec::snappy:
      return snappy(in, out);
    case Codec::gzip:
      return gzip(in, out);
    case Codec::zstd:
      return zstd(in, out);
    case Codec::lz4_raw:
      return lz4_raw(in, out);
    case Codec::lz4_hadoop:
      return lz4_hadoop(in, out);
    case Codec::brotli:
      return brotli(in, out);
    case Codec::lz4_frame:
      return lz4_frame(in, out);
  }
  return -1;
}

}  // namespace

const char* codec_name(Codec codec) {
  constexpr std::array kNames{"none", "snappy", "gzip", "zstd", "lz4_raw", "lz4", "brotli", "lz4_frame"};
  return kNames.at(static_cast<size_t>(codec));
}

int64_t largest_output(Codec codec, int64_t bytes) {
  // Output bytes for one input byte: a copy of Snappy makes 64 from 3, a length byte of LZ4 255, deflate
  // 1,032, a block of Zstandard that repeats a byte 131,072 from 4. Brotli's metablocks have no such bound.
  constexpr std::array<int64_t, 8> kRatio{1, 32, 1100, 33000, 260, 260, kMostBytes, 260};
  constexpr int64_t kHeader = 64;  // a small input may have this many bytes in any case
  const int64_t ratio = kRatio.at(static_cast<size_t>(codec));
  if (codec == Codec::none) return bytes;
  return bytes >= kMostBytes / ratio ? kMostBytes : bytes * ratio + kHeader;
}

void decompress(Codec codec, Bytes in, Output out, const std::string& name) {
  if (int64_t(in.size()) > kMostBytes || int64_t(out.size()) > kMostBytes)
    fail(ExitCode::data, "{}: {} bytes, {} after decompression: expected at most {} each", name, in.size(),
         out.size(), kMostBytes);
  uint8_t nothing = 0;  // libraries get an address even for an output of 0 bytes
  const int64_t got = run(codec, in, out.empty() ? Output{&nothing, 0} : out);
  if (got < 0)
    fail(ExitCode::data, "{}: {} bytes of {} data: damaged, or not {} bytes after decompression", name,
         in.size(), codec_name(codec), out.size());
  if (got != int64_t(out.size()))
    fail(ExitCode::data, "{}: {} bytes of {} data: expected {} bytes after decompression, got {}", name,
         in.size(), codec_name(codec), out.size(), got);
}

Output Buffer::reset(int64_t bytes) {
  if (bytes > capacity_) {
    data_.reset();
    capacity_ = 0;
    data_ = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(bytes));
    capacity_ = bytes;
  }
  size_ = bytes;
  return {data_.get(), static_cast<size_t>(bytes)};
}

Bytes decompress_to(Buffer& buffer, Codec codec, Bytes in, int64_t size, const std::string& name) {
  if (size < 0 || size > kMostBytes)
    fail(ExitCode::data, "{}: expected at most {} bytes after decompression, got {}", name, kMostBytes, size);
  if (size > largest_output(codec, int64_t(in.size())))
    fail(ExitCode::data, "{}: {} bytes of {} data cannot give the {} bytes that the file says", name,
         in.size(), codec_name(codec), size);
  if (codec == Codec::none && int64_t(in.size()) == size) return in;
  decompress(codec, in, buffer.reset(size), name);
  return buffer.bytes();
}

}  // namespace ltrain::records
