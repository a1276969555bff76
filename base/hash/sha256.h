// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104) for handshakes and signatures. The linked libraries have
// no cryptographic digest.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ltrain {

using Digest = std::array<unsigned char, 32>;

Digest sha256(std::string_view data);
Digest hmac_sha256(std::string_view key, std::string_view data);
std::string_view bytes_of(const Digest& d);

}  // namespace ltrain
