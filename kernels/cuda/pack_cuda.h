// 16-byte loads and stores, for memory-bound kernels.
#pragma once
#include <cstring>
#include <type_traits>

#include "kernels/cuda/kernel_cuda.h"

namespace ltrain::cuda {

template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T v[N];
};

template <class T, int N>
__device__ __forceinline__ Pack<T, N> load(const T* from, int64_t i) {
  static_assert(sizeof(Pack<T, N>) <= 16);
#ifdef LTRAIN_CUDA_EMULATED
  check_access(from + i, sizeof(Pack<T, N>));
  emulated().accesses.count(emulated().accesses.loaded, sizeof(Pack<T, N>));
#endif
  return *reinterpret_cast<const Pack<T, N>*>(from + i);
}
template <class T, int N>
__device__ __forceinline__ void store(T* to, int64_t i, const Pack<T, N>& p) {
  static_assert(sizeof(Pack<T, N>) <= 16);
#ifdef LTRAIN_CUDA_EMULATED
  check_access(to + i, sizeof(Pack<T, N>));
  emulated().accesses.count(emulated().accesses.stored, sizeof(Pack<T, N>));
#endif
  // Forces one access: the compiler splits the store of some packs into parts.
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(p) == 16) {
    uint32_t w[4];
    memcpy(w, &p, 16);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to + i)),
                 "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
    return;
  }
#endif
  *reinterpret_cast<Pack<T, N>*>(to + i) = p;
}
/// One element.
template <class T>
__device__ __forceinline__ T load_one(const T* from, int64_t i) {
  return load<T, 1>(from, i).v[0];
}
template <class T>
__device__ __forceinline__ void store_one(T* to, int64_t i, T v) {
  store(to, i, Pack<T, 1>{{v}});
}

/// Elements in 16 bytes of the widest of the types.
template <class... T>
constexpr int kPackOf = 16 / static_cast<int>(std::max({sizeof(T)...}));

/// Rounds two floats to a 16-bit type, a in the lower 16 bits, by one instruction.
#ifdef __CUDA_ARCH__
template <class T>
__device__ __forceinline__ uint32_t round_pair(float a, float b) {
  uint32_t both;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  }
  return both;
}
constexpr bool kRoundsPairs = true;
#else
template <class T>
uint32_t round_pair(float, float);  // never called
constexpr bool kRoundsPairs = false;
#endif

/// Values v rounded to T.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> rounded(const compute_t<T>* v) {
  Pack<T, N> p;
  if constexpr (kRoundsPairs && is_half_v<T> && N % 2 == 0) {
    for (int j = 0; j < N; j += 2) {
      const uint32_t both = round_pair<T>(v[j], v[j + 1]);
      memcpy(&p.v[j], &both, 4);
    }
  } else {
    for (int j = 0; j < N; ++j) put(p.v, j, v[j]);
  }
  return p;
}

/// v = the pack's elements in the arithmetic type. A word of two bf16 takes one instruction for each.
template <class T, int N>
__device__ __forceinline__ void unpack(compute_t<T>* v, const Pack<T, N>& p) {
  if constexpr (std::is_same_v<T, bf16> && N % 2 == 0) {
    for (int j = 0; j < N; j += 2) {
      uint32_t both, upper;
      memcpy(&both, &p.v[j], 4);
      upper = both & 0xffff0000u;
      both <<= 16;
      memcpy(v + j, &both, 4);
      memcpy(v + j + 1, &upper, 4);
    }
  } else {
    for (int j = 0; j < N; ++j) v[j] = get(p.v, j);
  }
}

/// Loads v = from[i ..] in the arithmetic type, and stores it: N elements, at most 16 bytes an access.
template <int N, class T>
__device__ __forceinline__ void load_values(compute_t<T>* v, const T* from, int64_t i) {
  constexpr int P = N < kPackOf<T> ? N : kPackOf<T>;
  static_assert(N % P == 0);
  for (int k = 0; k < N; k += P) unpack(v + k, load<T, P>(from, i + k));
}
template <int N, class T>
__device__ __forceinline__ void store_values(T* to, int64_t i, const compute_t<T>* v) {
  constexpr int P = N < kPackOf<T> ? N : kPackOf<T>;
  static_assert(N % P == 0);
  for (int k = 0; k < N; k += P) store(to, i + k, rounded<T, P>(v + k));
}

/// 16 bytes as loaded, for values that are kept before they are unpacked.
template <class T>
struct Raw {
  uint32_t word[4] = {};
  __device__ __forceinline__ void load(const T* from, int64_t i) {
    const Pack<uint32_t, 4> p = cuda::load<uint32_t, 4>(reinterpret_cast<const uint32_t*>(from + i), 0);
    for (int j = 0; j < 4; ++j) word[j] = p.v[j];
  }
  __device__ __forceinline__ void values(compute_t<T>* v) const {
    Pack<T, kPackOf<T>> p;
    memcpy(&p, word, 16);
    unpack(v, p);
  }
};

inline bool aligned(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<uintptr_t>(p) % 16) return false;
  return true;
}

/// Calls f with the number of elements that a thread handles at once: kPackOf<T...> if rows of `cols`
/// elements and all pointers (null counts as aligned) allow it, else 1.
template <class... T, class F>
void with_pack(int64_t cols, std::initializer_list<const void*> pointers, F&& f) {
  constexpr int N = kPackOf<T...>;
  if (cols % N == 0 && aligned(pointers)) {
    f.template operator()<N>();
  } else {
    f.template operator()<1>();
  }
}

/// with_pack for a flat run of any length (over_packs).
template <class... T, class F>
void with_alignment(std::initializer_list<const void*> pointers, F&& f) {
  with_pack<T...>(0, pointers, std::forward<F>(f));
}

/// Calls f<N>(i) for each full pack of n elements, and f<1>(i) for each remaining element, over the threads
/// of a grid.
template <int N, class F>
__device__ __forceinline__ void over_packs(int64_t n, F&& f) {
  for (int64_t i = grid_thread(); i < n / N; i += grid_stride()) f.template operator()<N>(i * N);
  if constexpr (N > 1) {
    const int64_t i = n / N * N + grid_thread();
    if (i < n) f.template operator()<1>(i);
  }
}

/// Grid with a block for each row and each run of its packs, so that threads need no division.
struct RowGrid {
  dim3 grid;
  int threads;
  RowGrid(int64_t rows, int64_t row_packs)
      : grid(1), threads(static_cast<int>(std::clamp<int64_t>((row_packs + 31) / 32 * 32, 32, 256))) {
    const int64_t parts = (row_packs + threads - 1) / threads;
    LT_CHECK(
        rows < int64_t{1} << 31 && parts <= 65535,
        "expected a grid of fewer than 2^31 rows and at most 65535 runs of packs, got {} rows of {} packs",
        rows, row_packs);
    grid = dim3(static_cast<unsigned>(rows), static_cast<unsigned>(parts));
  }
};
/// The thread's pack in the row blockIdx.x.
inline __device__ int64_t row_pack() { return int64_t{blockIdx.y} * blockDim.x + threadIdx.x; }

}  // namespace ltrain::cuda
