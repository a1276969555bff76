#include "kernels/attention/rope.h"
#include "kernels/cuda/pack_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kHeads = 8;  // that a thread turns by the same angles

/// A thread turns one pair of channels.
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

/// A thread turns the pairs of two packs, of kHeads heads: those of blockIdx.y. Pairs are element j of the
/// one and of the other, or neighbours in both. `packs`: rows * half_packs, below 2^31.
template <class T, bool kInterleaved>
__global__ void rope_packs(T* qkv, const float* table, uint32_t packs, uint32_t half_packs, int64_t width,
                           RowMapArgs map, RopeHeads p, bool inverse) {
  using A = compute_t<T>;
  constexpr int N = kPackOf<T>;
  const uint32_t n = blockIdx.x * blockDim.x + threadIdx.x;
  if (n >= packs) return;
  const uint32_t row = n / half_packs;
  const int64_t first = (n % half_packs) * N, half = int64_t{half_packs} * N;
  float angle[2 * N];
  load_values<2 * N>(angle, table, (map.embedded(row) * half + first) * 2);
  if (inverse)
    for (int j = 0; j < N; ++j) angle[2 * j + 1] = -angle[2 * j + 1];
  const int64_t head = int64_t{blockIdx.y} * kHeads, end = head + kHeads < p.heads ? head + kHeads : p.heads;
  const int64_t one = kInterleaved ? 2 * first : first, other = kInterleaved ? one + N : first + half;
  T* x = qkv + row * width + head * p.head_dim + p.first;
#pragma unroll 2
  for (int64_t h = head; h < end; ++h, x += p.head_dim) {
    A v[2 * N];
    load_values<N>(v, x, one);
    load_values<N>(v + N, x, other);
    for (int j = 0; j < N; ++j) {
      A &a = v[kInterleaved ? 2 * j : j], &b = v[kInterleaved ? 2 * j + 1 : j + N];
      const A c = A(angle[2 * j]), s = A(angle[2 * j + 1]), turned = a * c - b * s;
      b = b * c + a * s;
      a = turned;
    }
    store_values<N>(x, one, v);
    store_values<N>(x, other, v + N);
  }
}

template <class T>
void turn(Stream& s, T* qkv, const float* table, int64_t rows, int64_t width, RowMapArgs map, RopeHeads p,
          int64_t half, bool inverse) {
  constexpr int64_t N = kPackOf<T>;
  const int64_t packs = rows * (half / N), groups = (p.heads + kHeads - 1) / kHeads;
  if (half % N || p.first % N || p.head_dim % N || width % N || !aligned({qkv, table}) || packs >> 31 ||
      groups > 65535) {
    const int64_t pairs = rows * p.heads * half;
    return launch(s, blocks_for(pairs, kThreads), kThreads, 0, rope<T>, qkv, table, pairs, width, map, p,
                  half, inverse);
  }
  dim3 grid(static_cast<unsigned>((packs + kThreads - 1) / kThreads), static_cast<unsigned>(groups));
  launch(s, grid, kThreads, 0, p.interleaved ? rope_packs<T, true> : rope_packs<T, false>, qkv, table,
         static_cast<uint32_t>(packs), static_cast<uint32_t>(half / N), width, map, p, inverse);
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
