#include "base/hash/crc32c.h"

#include <array>
#include <cstring>

namespace ltrain {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

/// Table k advances a byte by k further bytes, so that eight bytes are looked up at once.
constexpr Tables make_tables() {
  Tables t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = c & 1 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
    t[0][i] = c;
  }
  for (size_t k = 1; k < t.size(); ++k)
    for (size_t i = 0; i < 256; ++i) t[k][i] = t[0][t[k - 1][i] & 0xFF] ^ (t[k - 1][i] >> 8);
  return t;
}
constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32c(const void* data, size_t size, uint32_t before) {
  uint32_t c = before ^ 0xFFFFFFFFu;
  const auto* p = static_cast<const unsigned char*>(data);
  for (; size >= 8; p += 8, size -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, p, 8);
    word ^= c;
    c = 0;
    for (size_t k = 0; k < 8; ++k) c ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (size_t i = 0; i < size; ++i) c = kTables[0][(c ^ p[i]) & 0xFF] ^ (c >> 8);
  return c ^ 0xFFFFFFFFu;
}

uint32_t masked_crc32c(const void* data, size_t size) {
  const uint32_t c = crc32c(data, size);
  return ((c >> 15) | (c << 17)) + 0xa282ead8u;
}

}  // namespace ltrain
