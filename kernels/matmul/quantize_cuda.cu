#include "kernels/cuda/pack_cuda.h"
#include "kernels/matmul/quantize.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;  // partial results of a largest magnitude, whatever the card
constexpr int kPack = 16;             // codes in 16 bytes
constexpr int kTile = 32;             // elements along a side of what a block turns at once, one by one
constexpr int kTurned = 64;           // likewise, by packs
constexpr int kTurnedThreads = 128;

__device__ uint32_t magnitude(float v) { return fp8::bits_of(v) & 0x7fffffffu; }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
constexpr bool kRoundsPairsTo = true;
template <class E>
__device__ __forceinline__ uint32_t round_pair_to(float a, float b) {
  uint16_t both;
  if constexpr (std::is_same_v<E, E4m3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
  }
  return both;
}
/// Apart, so that it costs no instructions where it is not needed.
template <class E>
__device__ __noinline__ uint8_t round_rare(float v) {
  return E::to(v);
}
#else
constexpr bool kRoundsPairsTo = false;
template <class E>
__device__ uint32_t round_pair_to(float, float);  // never called
template <class E>
__device__ uint8_t round_rare(float v);
#endif

/// codes of v * inverse; the largest magnitude of v goes into `most`.
template <class E, int N>
__device__ __forceinline__ void round_to(uint8_t* codes, float* v, float inverse, uint32_t& most) {
  float poison = 0;  // no number where something is not finite: its code is none of the instruction's
  for (int j = 0; j < N; ++j) {
    most = Max()(most, magnitude(v[j]));
    v[j] *= inverse;
    poison += v[j] * 0.0f;
  }
  if constexpr (kRoundsPairsTo && N % 2 == 0) {
    if (poison == 0) {
      for (int j = 0; j < N; j += 2) {
        const uint32_t both = round_pair_to<E>(v[j], v[j + 1]);
        codes[j] = static_cast<uint8_t>(both);
        codes[j + 1] = static_cast<uint8_t>(both >> 8);
      }
    } else {
      for (int j = 0; j < N; ++j) codes[j] = round_rare<E>(v[j]);
    }
  } else {
    for (int j = 0; j < N; ++j) codes[j] = E::to(v[j]);
  }
}

template <int N, class T>
__device__ __forceinline__ void load_floats(float* v, const T* x, int64_t i) {
  compute_t<T> wide[N];
  load_values<N>(wide, x, i);
  for (int j = 0; j < N; ++j) v[j] = static_cast<float>(wide[j]);
}

/// partial[block] = bits of the largest magnitude that the block saw.
__device__ void keep_largest(uint32_t* partial, uint32_t most, uint32_t* scratch) {
  most = block_reduce(most, Max(), 0u, scratch);
  if (threadIdx.x == 0) store_one(partial, blockIdx.x, most);
}

template <class T, int P>
__global__ void partial_max(uint32_t* partial, const T* x, int64_t n) {
  uint32_t most = 0;
  over_packs<P>(n, [&]<int N>(int64_t i) {
    float v[N];
    load_floats<N>(v, x, i);
    for (int j = 0; j < N; ++j) most = Max()(most, magnitude(v[j]));
  });
  keep_largest(partial, most, shared_memory<uint32_t>());
}

__global__ void raise(float* amax, const uint32_t* partial, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) most = Max()(most, partial[i]);
  most = block_reduce(most, Max(), 0u, shared_memory<uint32_t>());
  if (threadIdx.x == 0) *amax = fp8::float_of(Max()(most, fp8::bits_of(*amax)));
}

/// With kMax the largest magnitudes of blocks too: x is read once for both.
template <class E, class T, int P, bool kMax>
__global__ void quantize(uint8_t* codes, const T* x, int64_t n, const float* step, uint32_t* partial) {
  const float inverse = 1.0f / *step;
  uint32_t most = 0;
  over_packs<P>(n, [&]<int N>(int64_t i) {
    float v[N];
    load_floats<N>(v, x, i);
    Pack<uint8_t, N> c;
    round_to<E, N>(c.v, v, inverse, most);
    store(codes, i, c);
  });
  if (kMax) keep_largest(partial, most, shared_memory<uint32_t>());
}

/// A block turns tiles, from rows to rows, through shared memory.
template <class E, class T, bool kMax>
__global__ void quantize_turned(uint8_t* codes, const T* x, int64_t rows, int64_t cols, const float* step,
                                uint32_t* partial) {
  uint8_t* tile = shared_memory<uint8_t>() + kWarp * 4;  // (kTile, kTile + 1), behind what sums need
  const float inverse = 1.0f / *step;
  const int64_t across = (cols + kTile - 1) / kTile, tiles = (rows + kTile - 1) / kTile * across;
  uint32_t most = 0;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t r0 = t / across * kTile, c0 = t % across * kTile;
    for (int i = threadIdx.x; i < kTile * kTile; i += blockDim.x) {
      const int64_t r = r0 + i / kTile, c = c0 + i % kTile;
      if (r >= rows || c >= cols) continue;
      float v[1];
      load_floats<1>(v, x, r * cols + c);
      round_to<E, 1>(tile + (i / kTile) * (kTile + 1) + i % kTile, v, inverse, most);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * kTile; i += blockDim.x) {
      const int64_t c = c0 + i / kTile, r = r0 + i % kTile;
      if (r < rows && c < cols) store_one(codes, c * rows + r, tile[(i % kTile) * (kTile + 1) + i / kTile]);
    }
    __syncthreads();
  }
  if (kMax) keep_largest(partial, most, shared_memory<uint32_t>());
}

/// The same where rows come in 16 and cols in 8: a thread rounds 8 columns of 4 rows, and stores 16 rows of a
/// column.
template <class E, class T, bool kMax>
__global__ void __launch_bounds__(kTurnedThreads)
    quantize_turned_packs(uint8_t* codes, const T* x, int64_t rows, int64_t cols, const float* step,
                          uint32_t* partial) {
  constexpr int kQuads = kTurned / 4, kWidth = kQuads + 1;  // words of a column: four rows each
  uint32_t* tile = shared_memory<uint32_t>() + kWarp;       // (kTurned columns, kWidth)
  const float inverse = 1.0f / *step;
  const int64_t across = (cols + kTurned - 1) / kTurned, tiles = (rows + kTurned - 1) / kTurned * across;
  const int quad = threadIdx.x / 8, pack = threadIdx.x % 8;
  uint32_t most = 0;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t r0 = t / across * kTurned, c0 = t % across * kTurned;
    const int64_t row = r0 + 4 * quad, col = c0 + 8 * pack;
    if (row < rows && col < cols) {
      uint8_t c[4][8];
      for (int k = 0; k < 4; ++k) {
        float v[8];
        load_floats<8>(v, x, (row + k) * cols + col);
        round_to<E, 8>(c[k], v, inverse, most);
      }
      for (int j = 0; j < 8; ++j)
        tile[(8 * pack + j) * kWidth + quad] =
            static_cast<uint32_t>(c[0][j]) | static_cast<uint32_t>(c[1][j]) << 8 |
            static_cast<uint32_t>(c[2][j]) << 16 | static_cast<uint32_t>(c[3][j]) << 24;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kTurned * kTurned / kPack; i += kTurnedThreads) {
      const int64_t c = i / (kTurned / kPack), r = i % (kTurned / kPack) * kPack;
      if (c0 + c >= cols || r0 + r >= rows) continue;
      Pack<uint32_t, 4> words;
      for (int k = 0; k < 4; ++k) words.v[k] = tile[c * kWidth + r / 4 + k];
      store(reinterpret_cast<uint32_t*>(codes + (c0 + c) * rows + r0 + r), 0, words);
    }
    __syncthreads();
  }
  if (kMax) keep_largest(partial, most, shared_memory<uint32_t>());
}

/// A block for each element.
__global__ void update_steps(float* steps, float* amax, float* history, int64_t n, int64_t length,
                             Fp8StepArgs args) {
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    float* own = history + i * length;
    const float newest = length > 0 && !args.record ? own[0] : amax[i];
    float most = -INFINITY;  // of what is finite: the rest says nothing of the numbers to come
    for (int64_t end = length; end > 0; end -= kThreads) {  // from the oldest on
      const int64_t k = end - 1 - threadIdx.x;
      float v = newest;
      if (k >= 0) v = !args.record ? own[k] : k > 0 ? own[k - 1] : newest;
      __syncthreads();  // all have read before one writes
      if (k >= 0 && args.record) own[k] = v;
      if (k >= 0 && fp8::finite(v)) most = Max()(most, v);
    }
    most = block_reduce(most, Max(), -INFINITY, shared_memory<float>());
    if (threadIdx.x == 0) {
      if (length > 0 && args.record) amax[i] = 0;
      const bool all = length > 0 && !args.most_recent && fp8::finite(most);
      steps[i] = fp8::step_of(all ? most : newest, args.top[i % args.period], args.margin);
    }
    __syncthreads();
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void max_abs_cuda(Stream& s, DType t, float* amax, const void* x, int64_t n) {
  if (n == 0) return;
  uint32_t* partial = static_cast<uint32_t*>(scratch(s, kMaxBlocks * 4));
  dim3 blocks(1);
  dispatch_float(t, [&]<class T>() {
    with_alignment<T>({x}, [&]<int N>() {
      blocks = blocks_for(n / N, kThreads, kMaxBlocks);
      launch(s, blocks, kThreads, kWarp * 4, cuda::partial_max<T, N>, partial, static_cast<const T*>(x), n);
    });
  });
  launch(s, dim3(1), kThreads, kWarp * 4, cuda::raise, amax, static_cast<const uint32_t*>(partial),
         int64_t{blocks.x});
}

void quantize_cuda(Stream& s, DType to, DType from, void* codes, const void* x, int64_t rows, int64_t cols,
                   bool turn, const float* step, float* amax) {
  if (rows * cols == 0) return;
  uint32_t* partial = static_cast<uint32_t*>(scratch(s, kMaxBlocks * 4));
  const bool packs = aligned({codes, x});
  dim3 blocks(1);
  dispatch_fp8(to, [&]<class E>() {
    dispatch_float(from, [&]<class T>() {
      uint8_t* out = static_cast<uint8_t*>(codes);
      const T* in = static_cast<const T*>(x);
      const auto with_max = [&]<bool kMax>() {
        if (!turn) {
          blocks = blocks_for(rows * cols / (packs ? kPack : 1), kThreads, kMaxBlocks);
          return launch(s, blocks, kThreads, kWarp * 4,
                        packs ? cuda::quantize<E, T, kPack, kMax> : cuda::quantize<E, T, 1, kMax>, out, in,
                        rows * cols, step, partial);
        }
        if (packs && rows % kPack == 0 && cols % 8 == 0) {
          blocks =
              blocks_for((rows + kTurned - 1) / kTurned * ((cols + kTurned - 1) / kTurned), 1, kMaxBlocks);
          return launch(s, blocks, kTurnedThreads, (kWarp + kTurned * (kTurned / 4 + 1)) * 4,
                        cuda::quantize_turned_packs<E, T, kMax>, out, in, rows, cols, step, partial);
        }
        blocks = blocks_for((rows + kTile - 1) / kTile * ((cols + kTile - 1) / kTile), 1, kMaxBlocks);
        launch(s, blocks, kThreads, kWarp * 4 + kTile * (kTile + 1), cuda::quantize_turned<E, T, kMax>, out,
               in, rows, cols, step, partial);
      };
      amax ? with_max.template operator()<true>() : with_max.template operator()<false>();
    });
  });
  if (amax)
    launch(s, dim3(1), kThreads, kWarp * 4, cuda::raise, amax, static_cast<const uint32_t*>(partial),
           int64_t{blocks.x});
}

void update_fp8_steps_cuda(Stream& s, float* steps, float* amax, float* history, int64_t n, int64_t length,
                           Fp8StepArgs args) {
  launch(s, dim3(static_cast<unsigned>(std::min<int64_t>(n, 1 << 16))), kThreads, kWarp * 4,
         cuda::update_steps, steps, amax, history, n, length, args);
}

}  // namespace ltrain
