// MD5 (RFC 1321), for comparing a download with the ETag of an object.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ltrain::objects {

class Md5 {
 public:
  void add(const void* data, size_t size);
  std::string hex();  ///< digest of all bytes added, 32 digits; called once

 private:
  void block(const unsigned char* bytes);
  std::array<uint32_t, 4> state_{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  std::array<unsigned char, 64> rest_{};
  uint64_t size_ = 0;
};

}  // namespace ltrain::objects
