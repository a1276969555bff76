#include "base/hash/sha256_blocks.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace ltrain {

#if defined(__x86_64__)
namespace {

/// The instructions keep the state as the words a, b, e, f and c, d, g, h, each from the highest element
/// down.
__attribute__((target("sha,sse4.1"))) void sha256_blocks_x86(uint32_t (&state)[8], const unsigned char* data,
                                                             size_t blocks) {
  const auto load = [](const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); };
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i cdab = _mm_shuffle_epi32(load(state), 0xB1), efgh = _mm_shuffle_epi32(load(state + 4), 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];
    for (int i = 0; i < 4; ++i) words[i] = _mm_shuffle_epi8(load(data + 16 * i), big_endian);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {  // four rounds each
      const __m128i sum = _mm_add_epi32(words[i & 3], load(kSha256Round + 4 * i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
      if (i >= 12) continue;
      // The words of 16 rounds later.
      const __m128i last = words[(i + 3) & 3];
      const __m128i seven = _mm_alignr_epi8(last, words[(i + 2) & 3], 4);
      const __m128i first = _mm_add_epi32(_mm_sha256msg1_epu32(words[i & 3], words[(i + 1) & 3]), seven);
      words[i & 3] = _mm_sha256msg2_epu32(first, last);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

}  // namespace

Sha256Blocks sha256_blocks_of_cpu() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
  const bool has_sse = __get_cpuid(1, &a, &b, &c, &d) && (c >> 19 & 1);
  return has_sha && has_sse ? &sha256_blocks_x86 : nullptr;
}
#else
Sha256Blocks sha256_blocks_of_cpu() { return nullptr; }
#endif

}  // namespace ltrain
