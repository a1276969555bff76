#include "kernels/attention/rope.h"
#include "kernels/cuda/pack_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kHeadsAtOnce = 4;  // heads that a thread loads before it stores the first

/// One thread rotates one pair of channels.
template <class T>
__global__ void rope(T* qkv, const float* table, int64_t pairs, int64_t width, RowMapArgs map, RopeHeads p,
                     int64_t half, bool inverse) {
  using A = compute_t<T>;
  for (int64_t n = grid_thread(); n < pairs; n += grid_stride()) {
    const int64_t i = n % half, h = n / half % p.heads, row = n / half / p.heads;
    const float* angle = table + (map.embedded(row) * half + i) * 2;
    const A c = A(angle[0]), sn = inverse ? -A(angle[1]) : A(angle[1]);
    T* x = qkv + row * width + h * p.head_dim + p.first;
    const int64_t one = p.interleaved ? 2 * i : i, other = p.interleaved ? one + 1 : i + half;
    const A a = get(x, one), b = get(x, other);
    put(x, one, a * c - b * sn);
    put(x, other, b * c + a * sn);
  }
}

/// One thread rotates the pairs of two packs, of every head_lanes-th head, by the same angles. Neighbouring
/// threads have neighbouring packs of a head, then neighbouring heads of a row. A pair is element j of both
/// packs, or two neighbours in one pack. `threads`: rows * head_lanes * half_packs, below 2^31.
template <class T, bool kInterleaved>
__global__ void rope_packs(T* qkv, const float* table, uint32_t threads, uint32_t half_packs,
                           uint32_t head_lanes, int64_t width, RowMapArgs map, RopeHeads p, bool inverse) {
  using A = compute_t<T>;
  constexpr int N = kPackOf<T>;
  const uint32_t n = blockIdx.x * blockDim.x + threadIdx.x;
  if (n >= threads) return;
  const uint32_t row = n / (half_packs * head_lanes);
  const int64_t first = (n % half_packs) * N, half = int64_t{half_packs} * N;
  float angle[2 * N];
  load_values<2 * N>(angle, table, (map.embedded(row) * half + first) * 2);
  if (inverse)
    for (int j = 0; j < N; ++j) angle[2 * j + 1] = -angle[2 * j + 1];
  const int64_t one = kInterleaved ? 2 * first : first, other = kInterleaved ? one + N : first + half;
  T* const of_row = qkv + row * width + p.first;
  for (int64_t h0 = n / half_packs % head_lanes; h0 < p.heads; h0 += kHeadsAtOnce * int64_t{head_lanes}) {
    Raw<T> left[kHeadsAtOnce], right[kHeadsAtOnce];
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i)
      if (const int64_t h = h0 + i * int64_t{head_lanes}; h < p.heads) {
        left[i].load(of_row, h * p.head_dim + one);
        right[i].load(of_row, h * p.head_dim + other);
      }
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      const int64_t h = h0 + i * int64_t{head_lanes};
      if (h >= p.heads) continue;
      A v[2 * N];
      left[i].values(v);
      right[i].values(v + N);
      for (int j = 0; j < N; ++j) {
        A &a = v[kInterleaved ? 2 * j : j], &b = v[kInterleaved ? 2 * j + 1 : j + N];
        const A c = A(angle[2 * j]), s = A(angle[2 * j + 1]), turned = a * c - b * s;
        b = b * c + a * s;
        a = turned;
      }
      store_values<N>(of_row, h * p.head_dim + one, v);
      store_values<N>(of_row, h * p.head_dim + other, v + N);
    }
  }
}

template <class T>
void turn(Stream& s, T* qkv, const float* table, int64_t rows, int64_t width, RowMapArgs map, RopeHeads p,
          int64_t half, bool inverse) {
  constexpr int64_t N = kPackOf<T>;
  const int64_t half_packs = half / N,
                head_lanes = std::clamp<int64_t>(half_packs ? kWarp / half_packs : 1, 1, p.heads),
                threads = rows * half_packs * head_lanes;
  if (half % N || p.first % N || p.head_dim % N || width % N || !aligned({qkv, table}) || threads >> 31) {
    const int64_t pairs = rows * p.heads * half;
    return launch(s, blocks_for(pairs, kThreads), kThreads, 0, rope<T>, qkv, table, pairs, width, map, p,
                  half, inverse);
  }
  launch(s, dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)), kThreads, 0,
         p.interleaved ? rope_packs<T, true> : rope_packs<T, false>, qkv, table,
         static_cast<uint32_t>(threads), static_cast<uint32_t>(half_packs), static_cast<uint32_t>(head_lanes),
         width, map, p, inverse);
}

}  // namespace
}  // namespace cuda

void rope_cuda(Stream& s, DType t, void* qkv, const float* table, int64_t rows, int64_t width, RowMapArgs map,
               RopeHeads heads, int64_t rotary_dim, bool inverse) {
  dispatch_float(t, [&]<class T>() {
    cuda::turn(s, static_cast<T*>(qkv), table, rows, width, map, heads, rotary_dim / 2, inverse);
  });
}

}  // namespace ltrain
