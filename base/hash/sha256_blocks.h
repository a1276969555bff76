// The compression function of SHA-256 over whole blocks of 64 bytes.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ltrain {

using Sha256Blocks = void (*)(uint32_t (&state)[8], const unsigned char* data, size_t blocks);

/// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
extern const uint32_t kSha256Round[64];

void sha256_blocks_portable(uint32_t (&state)[8], const unsigned char* data, size_t blocks);
/// The function by this CPU's SHA instructions, about ten times as fast; null: it has none.
Sha256Blocks sha256_blocks_of_cpu();

}  // namespace ltrain
