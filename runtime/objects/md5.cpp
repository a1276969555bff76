#include "runtime/objects/md5.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/secret.h"

namespace ltrain::objects {
namespace {

constexpr int kTurns[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

/// Constants of the 64 rounds: 2^32 times the magnitude of the sine of 1 to 64.
std::array<uint32_t, 64> sines() {
  std::array<uint32_t, 64> t{};
  for (size_t i = 0; i < 64; ++i)
    t[i] = static_cast<uint32_t>(std::floor(std::abs(std::sin(static_cast<double>(i + 1))) * 4294967296.0));
  return t;
}

}  // namespace

void Md5::block(const unsigned char* bytes) {
  static const std::array<uint32_t, 64> table = sines();
  uint32_t x[16];
  for (size_t i = 0; i < 16; ++i)
    x[i] = static_cast<uint32_t>(bytes[4 * i]) | static_cast<uint32_t>(bytes[4 * i + 1]) << 8 |
           static_cast<uint32_t>(bytes[4 * i + 2]) << 16 | static_cast<uint32_t>(bytes[4 * i + 3]) << 24;
  auto [a, b, c, d] = state_;
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t f = i < 16   ? (b & c) | (~b & d)
                       : i < 32 ? (b & d) | (c & ~d)
                       : i < 48 ? b ^ c ^ d
                                : c ^ (b | ~d);
    const uint32_t word = i < 16 ? i : i < 32 ? 5 * i + 1 : i < 48 ? 3 * i + 5 : 7 * i;
    const uint32_t turned = std::rotl(a + f + x[word % 16] + table[i], kTurns[i / 16][i % 4]);
    a = d, d = c, c = b, b += turned;
  }
  state_[0] += a, state_[1] += b, state_[2] += c, state_[3] += d;
}

void Md5::add(const void* data, size_t size) {
  const auto* p = static_cast<const unsigned char*>(data);
  size_t have = size_ % 64;
  size_ += size;
  if (have > 0) {
    const size_t n = std::min(size, 64 - have);
    std::memcpy(rest_.data() + have, p, n);
    p += n, size -= n, have += n;
    if (have < 64) return;
    block(rest_.data());
  }
  for (; size >= 64; p += 64, size -= 64) block(p);
  std::memcpy(rest_.data(), p, size);
}

std::string Md5::hex() {
  const uint64_t bits = size_ * 8;
  const unsigned char one = 0x80, zero = 0;
  add(&one, 1);
  while (size_ % 64 != 56) add(&zero, 1);
  unsigned char end[8];
  for (int i = 0; i < 8; ++i) end[i] = static_cast<unsigned char>(bits >> (8 * i));
  add(end, 8);
  std::string digest;
  for (const uint32_t word : state_)
    for (int i = 0; i < 4; ++i) digest += static_cast<char>(word >> (8 * i));
  return to_hex(digest);
}

}  // namespace ltrain::objects
