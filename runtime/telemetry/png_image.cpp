#include "runtime/telemetry/png_image.h"

#include <zlib.h>

#include "base/error.h"
#include "base/heat_colour.h"

namespace ltrain {
namespace {

void put_big_endian(std::string& to, uint64_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) to += static_cast<char>(value >> shift);
}

/// Length, type, bytes and CRC-32 of the latter two.
void put_chunk(std::string& to, const std::string& type, const std::string& bytes) {
  put_big_endian(to, bytes.size());
  const std::string body = type + bytes;
  to += body;
  put_big_endian(to, crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size()));
}

std::string deflated(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string out(size, '\0');
  const int code = compress(reinterpret_cast<Bytef*>(out.data()), &size,
                            reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  LT_CHECK(code == Z_OK, "expected zlib to compress {} bytes, got code {}", bytes.size(), code);
  out.resize(size);
  return out;
}

}  // namespace

std::string png_of(const Image& image) {
  LT_CHECK(static_cast<int64_t>(image.pixels.size()) == image.width * image.height,
           "expected {} x {} pixels, got {}", image.width, image.height, image.pixels.size());
  std::string out = "\x89PNG\r\n\x1a\n", header, rows;
  put_big_endian(header, static_cast<uint64_t>(image.width));
  put_big_endian(header, static_cast<uint64_t>(image.height));
  header += {8, 2, 0, 0, 0};  // bits a colour, RGB, deflate, filters by row, not interlaced
  for (int64_t y = 0; y < image.height; ++y) {
    rows += '\0';  // no filter
    for (int64_t x = 0; x < image.width; ++x)
      for (const uint8_t c : image.pixels[static_cast<size_t>(y * image.width + x)])
        rows += static_cast<char>(c);
  }
  put_chunk(out, "IHDR", header);
  put_chunk(out, "IDAT", deflated(rows));
  put_chunk(out, "IEND", "");
  return out;
}

Image heat_map(const std::vector<std::vector<double>>& rows) {
  constexpr int64_t kCell = 8;  // pixels
  if (rows.empty()) return {};
  const auto columns = static_cast<int64_t>(rows.front().size());
  Image image{columns * kCell, static_cast<int64_t>(rows.size()) * kCell, {}};
  for (int64_t y = 0; y < image.height; ++y)
    for (int64_t x = 0; x < image.width; ++x)
      image.pixels.push_back(
          heat_colour(rows[static_cast<size_t>(y / kCell)].at(static_cast<size_t>(x / kCell))));
  return image;
}

}  // namespace ltrain
