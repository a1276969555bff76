#include "base/hash/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash/sha256_blocks.h"

namespace ltrain {
namespace {

constexpr size_t kBlock = 64;  // bytes

}  // namespace

const uint32_t kSha256Round[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

namespace {

void compress(uint32_t (&h)[8], const unsigned char* block) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = static_cast<uint32_t>(block[4 * i]) << 24 | static_cast<uint32_t>(block[4 * i + 1]) << 16 |
           static_cast<uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  uint32_t s[8];
  std::copy(std::begin(h), std::end(h), s);
  for (int i = 0; i < 64; ++i) {
    const uint32_t e = s[4], a = s[0];
    const uint32_t t1 = s[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & s[5]) ^ (~e & s[6])) + kSha256Round[i] + w[i];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
    std::copy_backward(s, s + 7, s + 8);
    s[4] += t1;
    s[0] = t1 + t2;
  }
  for (int i = 0; i < 8; ++i) h[i] += s[i];
}

}  // namespace

void sha256_blocks_portable(uint32_t (&state)[8], const unsigned char* data, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) compress(state, data + i * kBlock);
}

Digest sha256(std::string_view data) {
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  // 0x80, zeros, and the length in bits fill the last block.
  std::string end(data.substr(data.size() / kBlock * kBlock));
  end.push_back('\x80');
  while (end.size() % kBlock != kBlock - 8) end.push_back('\0');
  const uint64_t bits = static_cast<uint64_t>(data.size()) * 8;
  for (int i = 7; i >= 0; --i) end.push_back(static_cast<char>(bits >> (8 * i)));
  static const Sha256Blocks of_cpu = sha256_blocks_of_cpu();
  const Sha256Blocks add = of_cpu ? of_cpu : &sha256_blocks_portable;
  add(h, reinterpret_cast<const unsigned char*>(data.data()), data.size() / kBlock);
  add(h, reinterpret_cast<const unsigned char*>(end.data()), end.size() / kBlock);
  Digest out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<unsigned char>(h[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

Digest hmac_sha256(std::string_view key, std::string_view data) {
  std::string k(key.size() > kBlock ? std::string(bytes_of(sha256(key))) : std::string(key));
  k.resize(kBlock, '\0');
  std::string inner = k, outer = k;
  for (char& c : inner) c = static_cast<char>(c ^ 0x36);
  for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
  inner += data;
  const Digest d = sha256(inner);
  return sha256(outer += bytes_of(d));
}

std::string_view bytes_of(const Digest& d) { return {reinterpret_cast<const char*>(d.data()), d.size()}; }

}  // namespace ltrain
