#include "kernels/elementwise/group_codes.h"

#include <algorithm>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

/// u[c]: random number of channel begin + c of the full row whose Philox calls begin at `call`.
void uniforms(float* u, int64_t begin, int64_t count, uint64_t call, const RowRandomArgs& r) {
  const int64_t end = begin + count;
  for (int64_t i = begin / 4; i * 4 < end; ++i) {
    const Philox4 four = philox(r.seed, r.stream, call + static_cast<uint64_t>(i));
    for (int64_t j = 0; j < 4; ++j)
      if (const int64_t c = i * 4 + j; c >= begin && c < end) u[c - begin] = group_codes::uniform(four.v[j]);
  }
}

template <bool kFp8, class T, class A = compute_t<T>>
void encode_group(uint8_t* codes, A* scale, const T* x, const float* u, int64_t n) {
  decltype(group_codes::magnitude_bits(A())) most = 0;
  for (int64_t c = 0; c < n; ++c) most = std::max(most, group_codes::magnitude_bits(get(x, c)));
  const A one = group_codes::magnitude_of(most) / A(kFp8 ? 448 : 127);
  *scale = one;
  for (int64_t c = 0; c < n; ++c) {
    if constexpr (kFp8)
      codes[c] = group_codes::fp8_code(get(x, c), one);
    else
      codes[c] = group_codes::int8_code(get(x, c), one, u[c]);
  }
}

/// Calls f.template operator()<kFp8>(), and the like.
template <class F>
void dispatch_codes_of(bool fp8, F&& f) {
  fp8 ? f.template operator()<true>() : f.template operator()<false>();
}

}  // namespace

void encode_groups_cpu(DType t, bool to_fp8, uint8_t* codes, void* scales, const void* x, SectionedRows g,
                       RowRandomArgs random) {
  const int64_t cols = g.sections * g.width, groups = g.groups();
  dispatch_float(t, [&]<class T>() {
    dispatch_codes_of(to_fp8, [&]<bool kFp8>() {
      using A = compute_t<T>;
      parallel_for(g.rows, 4, [=](int64_t begin, int64_t end) {
        float* u = scratch<float>(0, g.width);
        for (int64_t row = begin; row < end; ++row)
          for (int64_t k = 0; k < g.sections; ++k) {
            if (!kFp8) uniforms(u, g.channel(k, random), g.width, random.call(row, cols), random);
            for (int64_t i = 0; i < groups; ++i) {
              const int64_t first = i * kGroupChannels, at = row * cols + k * g.width + first;
              encode_group<kFp8>(codes + at, static_cast<A*>(scales) + (row * g.sections + k) * groups + i,
                                 static_cast<const T*>(x) + at, u + first,
                                 std::min(kGroupChannels, g.width - first));
            }
          }
      });
    });
  });
}

void decode_groups_cpu(DType t, bool from_fp8, void* x, const uint8_t* codes, const void* scales,
                       SectionedRows g) {
  const int64_t groups = g.groups();
  dispatch_float(t, [&]<class T>() {
    dispatch_codes_of(from_fp8, [&]<bool kFp8>() {
      using A = compute_t<T>;
      parallel_for(g.rows * g.sections, 8, [=](int64_t begin, int64_t end) {
        for (int64_t run = begin; run < end; ++run)  // a section of a row
          for (int64_t i = 0; i < groups; ++i) {
            const int64_t first = i * kGroupChannels, n = std::min(kGroupChannels, g.width - first);
            const A scale = static_cast<const A*>(scales)[run * groups + i];
            T* const to = static_cast<T*>(x) + run * g.width + first;
            const uint8_t* const from = codes + run * g.width + first;
            for (int64_t c = 0; c < n; ++c) put(to, c, group_codes::number_of<kFp8>(from[c], scale));
          }
      });
    });
  });
}

}  // namespace ltrain::LT_ISA
