// Images of experts: a PNG's chunks with a checksum bit by bit, and the colours of maps.
#include "runtime/telemetry/expert_images.h"

#include <zlib.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/heat_colour.h"
#include "runtime/telemetry/metrics.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

using Pixel = std::array<uint8_t, 3>;

uint32_t slow_crc32(const std::string& data) {
  uint32_t c = ~0u;
  for (const unsigned char byte : data) {
    c ^= byte;
    for (int i = 0; i < 8; ++i) c = (c >> 1) ^ (c & 1 ? 0xEDB88320u : 0);
  }
  return ~c;
}

uint32_t big_endian(const std::string& s, size_t at) {
  uint32_t v = 0;
  for (size_t i = 0; i < 4; ++i) v = v << 8 | static_cast<unsigned char>(s.at(at + i));
  return v;
}

/// Chunks of a PNG by type; throws where a length or a checksum is wrong.
std::map<std::string, std::string> chunks(const std::string& png) {
  if (png.substr(0, 8) != "\x89PNG\r\n\x1a\n") throw std::runtime_error("signature");
  std::map<std::string, std::string> out;
  for (size_t at = 8; at < png.size();) {
    const size_t length = big_endian(png, at);
    const std::string body = png.substr(at + 4, 4 + length);
    if (big_endian(png, at + 8 + length) != slow_crc32(body)) throw std::runtime_error("crc");
    out[body.substr(0, 4)] = body.substr(4);
    at += 12 + length;
  }
  return out;
}

/// Pixels of an RGB image of 8 bits without filters.
Image decoded(const std::string& png) {
  const auto of = chunks(png);
  const std::string& header = of.at("IHDR");
  Image image{big_endian(header, 0), big_endian(header, 4), {}};
  REQUIRE(header.substr(8) == std::string({8, 2, 0, 0, 0}));
  REQUIRE(of.at("IEND").empty());
  std::string rows(static_cast<size_t>(image.height * (1 + 3 * image.width)), '\0');
  uLongf size = rows.size();
  const std::string& data = of.at("IDAT");
  REQUIRE(uncompress(reinterpret_cast<Bytef*>(rows.data()), &size,
                     reinterpret_cast<const Bytef*>(data.data()), data.size()) == Z_OK);
  REQUIRE(size == rows.size());
  for (size_t at = 0; at < rows.size();) {
    REQUIRE(rows[at++] == 0);
    for (int64_t x = 0; x < image.width; ++x, at += 3)
      image.pixels.push_back({static_cast<uint8_t>(rows[at]), static_cast<uint8_t>(rows[at + 1]),
                              static_cast<uint8_t>(rows[at + 2])});
  }
  return image;
}

/// PNG files in the events of a folder, in their order.
std::vector<Image> images_in(const std::string& folder) {
  std::vector<Image> out;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string bytes = read_file(file.path().string());
    for (size_t at = bytes.find("\x89PNG"); at != std::string::npos; at = bytes.find("\x89PNG", at + 1))
      out.push_back(decoded(bytes.substr(at, bytes.find("IEND", at) + 8 - at)));
  }
  return out;
}

}  // namespace

TEST_CASE("a PNG has its pixels in chunks whose checksums are right", "[telemetry]") {
  Image image{3, 2, {}};
  for (uint8_t i = 0; i < 6; ++i) image.pixels.push_back({i, static_cast<uint8_t>(40 * i), 255});
  const std::string png = png_of(image);
  CHECK(decoded(png).pixels == image.pixels);
  std::string damaged = png;
  damaged[20] ^= 1;
  CHECK_THROWS(chunks(damaged));
}

TEST_CASE("heat is grey at 0, red at 1, white where there is no value", "[telemetry]") {
  CHECK(heat_colour(0) == Pixel{0xf2, 0xf2, 0xf2});
  CHECK(heat_colour(1) == Pixel{0xb0, 0x10, 0x10});
  CHECK(heat_colour(0.25) == Pixel{0xd1, 0x81, 0x81});
  CHECK(heat_colour(NAN) == Pixel{0xff, 0xff, 0xff});
}

TEST_CASE("images of experts: loads since the image before, a column of drops and churn for each",
          "[telemetry]") {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  ExpertImages images;
  StepMetrics m;
  m.expert_tokens = {{}, {3, 1}};  // the first layer is dense
  m.drop_rate_by_layer = {NAN, 0.5};
  images.step(m);
  m.expert_tokens[1] = {3, 9}, m.drop_rate_by_layer[1] = 0;
  images.step(m);
  images.write(2, writer);
  images.write(2, writer);  // no step since
  m.expert_tokens[1] = {0, 4};
  images.step(m);
  images.write(3, writer);
  images.routing(3, {0.25, {NAN, 0.25}}, writer);
  writer.file().finish();
  const std::vector<Image> found = images_in(folder.path());
  REQUIRE(found.size() == 5);
  const auto cell = [&](size_t image, int64_t row, int64_t column) {
    return found[image].pixels[static_cast<size_t>((row * 8 + 3) * found[image].width + column * 8 + 3)];
  };
  CHECK((found[0].width == 16 && found[0].height == 16));
  CHECK(cell(0, 0, 1) == heat_colour(NAN));
  CHECK(cell(0, 1, 0) == heat_colour(6.0 / 16));
  CHECK(cell(0, 1, 1) == heat_colour(10.0 / 16));
  CHECK((found[1].width == 8 && cell(1, 1, 0) == heat_colour(0.25)));
  CHECK((cell(2, 1, 0) == heat_colour(0) && cell(2, 1, 1) == heat_colour(1)));
  CHECK((found[3].width == 16 && cell(3, 1, 0) == heat_colour(0.25) && cell(3, 1, 1) == heat_colour(0)));
  CHECK((cell(4, 0, 0) == heat_colour(NAN) && cell(4, 1, 0) == heat_colour(0.25)));
}
