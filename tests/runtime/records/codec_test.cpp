// Codecs: their libraries' own output, read back, and damaged.
#include "runtime/records/encodings/codec.h"

#include <brotli/encode.h>
#include <lz4.h>
#include <lz4frame.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>

#include "runtime/records/encodings/json_value.h"
#include "tests/runtime/records/support.h"

using namespace ltrain;
using namespace ltrain::records;
using namespace ltrain::records::test;

namespace {

Bytes view_of(const std::string& s) { return {reinterpret_cast<const uint8_t*>(s.data()), s.size()}; }

/// The text compressed; "" for the codec none.
std::string compressed(Codec codec, const std::string& text) {
  std::string out(text.size() * 2 + 1000, '\0');
  size_t size = out.size();
  auto* to = reinterpret_cast<uint8_t*>(out.data());
  const int bytes = static_cast<int>(text.size()), room = static_cast<int>(out.size());
  switch (codec) {
    case Codec::none:
      return text;
    case Codec::snappy:
      snappy_compress(text.data(), text.size(), out.data(), &size);
      break;
    case Codec::gzip: {
      z_stream z{};
      deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
      z.next_in = reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
      z.avail_in = static_cast<uInt>(text.size());
      z.next_out = to;
      z.avail_out = static_cast<uInt>(out.size());
      deflate(&z, Z_FINISH);
      size = out.size() - z.avail_out;
      deflateEnd(&z);
      break;
    }
    case Codec::zstd:
      size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3);
      break;
    case Codec::lz4_raw:
      size = static_cast<size_t>(LZ4_compress_default(text.data(), out.data(), bytes, room));
      break;
    case Codec::lz4_hadoop: {
      const int block = LZ4_compress_default(text.data(), out.data() + 8, bytes, room - 8);
      for (int i = 0; i < 4; ++i) out[i] = static_cast<char>(bytes >> (24 - 8 * i));
      for (int i = 0; i < 4; ++i) out[4 + i] = static_cast<char>(block >> (24 - 8 * i));
      size = static_cast<size_t>(block) + 8;
      break;
    }
    case Codec::brotli:
      BrotliEncoderCompress(5, 22, BROTLI_MODE_GENERIC, text.size(),
                            reinterpret_cast<const uint8_t*>(text.data()), &size, to);
      break;
    case Codec::lz4_frame:
      size = LZ4F_compressFrame(out.data(), out.size(), text.data(), text.size(), nullptr);
      break;
  }
  return out.substr(0, size);
}

constexpr Codec kAll[] = {Codec::none,    Codec::snappy,     Codec::gzip,   Codec::zstd,
                          Codec::lz4_raw, Codec::lz4_hadoop, Codec::brotli, Codec::lz4_frame};

std::string text_of(size_t bytes) {
  std::string text;
  for (size_t i = 0; text.size() < bytes; ++i) text += std::to_string(i * i) + (i % 3 ? "aaaa" : " ");
  return text.substr(0, bytes);
}

std::string decompressed(Codec codec, const std::string& in, size_t size) {
  std::string out(size, '?');
  decompress(codec, view_of(in), {reinterpret_cast<uint8_t*>(out.data()), out.size()}, "x");
  return out;
}

}  // namespace

TEST_CASE("each codec decompresses data of its library, and refuses another size") {
  for (const Codec codec : kAll)
    for (const size_t size : {size_t{1}, size_t{100}, size_t{70000}}) {
      INFO(codec_name(codec) << " " << size);
      const std::string text = text_of(size), in = compressed(codec, text);
      CHECK(decompressed(codec, in, size) == text);
      CHECK_THROWS_AS(decompressed(codec, in, size - 1), Error);
      CHECK_THROWS_AS(decompressed(codec, in, size + 1), Error);
      CHECK_THROWS_AS(decompressed(codec, in.substr(0, in.size() - 1), size), Error);
      if (codec != Codec::gzip) CHECK_THROWS_AS(decompressed(codec, in + "x", size), Error);
    }
  CHECK_THROWS_WITH(decompressed(Codec::zstd, compressed(Codec::zstd, "four"), 5),
                    "x: 13 bytes of zstd data: expected 5 bytes after decompression, got 4");
}

TEST_CASE("a codec reads an empty output") {
  for (const Codec codec : kAll) {
    INFO(codec_name(codec));
    CHECK(decompressed(codec, compressed(codec, ""), 0).empty());
  }
}

TEST_CASE("gzip data may have several members, and zlib's header") {
  CHECK(decompressed(Codec::gzip, compressed(Codec::gzip, "one") + compressed(Codec::gzip, "two"), 6) ==
        "onetwo");
}

TEST_CASE("Parquet's old LZ4 is a Hadoop block, a frame, or one raw block") {
  const std::string text = text_of(5000);
  for (const Codec codec : {Codec::lz4_hadoop, Codec::lz4_frame, Codec::lz4_raw})
    CHECK(decompressed(Codec::lz4_hadoop, compressed(codec, text), 5000) == text);
  const std::string two = compressed(Codec::lz4_hadoop, text) + compressed(Codec::lz4_hadoop, "more");
  CHECK(decompressed(Codec::lz4_hadoop, two, 5004) == text + "more");
}

TEST_CASE("a size that compressed data cannot have is refused before memory is taken") {
  Buffer buffer;
  const std::string in = compressed(Codec::snappy, text_of(100));
  CHECK_THROWS_WITH(decompress_to(buffer, Codec::snappy, view_of(in), 1'000'000, "x"),
                    Catch::EndsWith("cannot give the 1000000 bytes that the file says"));
  CHECK_THROWS_WITH(decompress_to(buffer, Codec::brotli, view_of(in), (int64_t{1} << 30) + 1, "x"),
                    "x: expected at most 1073741824 bytes after decompression, got 1073741825");
  CHECK(buffer.bytes().empty());
}

TEST_CASE("damaged compressed data is an error or other bytes, never a crash") {
  std::mt19937 random(1);
  int errors = 0;
  for (const Codec codec : kAll)
    for (int i = 0; i < 300; ++i) {
      std::string in = compressed(codec, text_of(2000));
      for (int left = 3; left > 0; --left) in[random() % in.size()] = static_cast<char>(random());
      if (i % 3 == 0) in.resize(random() % in.size());
      try {
        decompressed(codec, in, 2000);
      } catch (const Error&) {
        ++errors;
      }
    }
  CHECK(errors > 1000);
}

TEST_CASE("values become JSON: escapes, shortest floats, decimals") {
  const auto made = [](auto append, auto... value) {
    std::string text;
    append(text, value...);
    return text;
  };
  CHECK(made(append_json_string, std::string_view("a\"\\\n\x01/\xff", 7)) == "\"a\\\"\\\\\\n\\u0001/\xff\"");
  CHECK(made(append_json_string, std::string_view("\b\t\v\f\r")) == "\"\\b\\t\\u000b\\f\\r\"");
  CHECK(made(append_json_float, 1.0) == "1.0");
  CHECK(made(append_json_float, 0.1) == "0.1");
  CHECK(made(append_json_float, 1e300) == "1e+300");
  CHECK(made(append_json_float, static_cast<double>(NAN)) == "NaN");
  CHECK(made(append_json_float, -HUGE_VAL) == "-Infinity");
  CHECK(float_of_half(0x3C00) == 1.0f);
  CHECK(float_of_half(0x0001) == std::ldexp(1.0f, -24));
  CHECK(float_of_half(0xFBFF) == -65504.0f);
  const auto decimal = [](int64_t unscaled, int scale) {
    std::string text;
    append_json_decimal(text, unscaled, scale);
    return text;
  };
  CHECK(decimal(-1234, 2) == "\"-12.34\"");
  CHECK(decimal(5, 3) == "\"0.005\"");
  CHECK(decimal(0, 0) == "\"0\"");
  CHECK(decimal(INT64_MIN, 0) == "\"-9223372036854775808\"");
  std::string text;
  CHECK_THROWS_AS(append_json_decimal(text, Bytes{}, 0), Damage);
}
