// PNG images (https://www.w3.org/TR/png-3/), for TensorBoard.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain {

/// Red, green and blue of each pixel, row by row from the top.
struct Image {
  int64_t width = 0, height = 0;
  std::vector<std::array<uint8_t, 3>> pixels;
};

/// Bytes of a PNG file with 8 bits a colour.
std::string png_of(const Image& image);

/// A heat map with a square of pixels for each value; `rows` are of one length. NaN is white.
Image heat_map(const std::vector<std::vector<double>>& rows);

}  // namespace ltrain
