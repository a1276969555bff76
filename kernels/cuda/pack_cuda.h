// 16 bytes at a time: what a thread of an element-wise kernel loads and stores.
#pragma once
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain::cuda {

template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T v[N];
};

template <class T, int N>
__device__ Pack<T, N> load(const T* from, int64_t i) {
  return *reinterpret_cast<const Pack<T, N>*>(from + i);
}
template <class T, int N>
__device__ void store(T* to, int64_t i, const Pack<T, N>& p) {
  *reinterpret_cast<Pack<T, N>*>(to + i) = p;
}

/// Elements in 16 bytes of the widest of the types.
template <class... T>
constexpr int kPackOf = 16 / static_cast<int>(std::max({sizeof(T)...}));

inline bool aligned(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<uintptr_t>(p) % 16) return false;
  return true;
}

/// Calls f with the number of elements a thread takes at once: kPackOf<T...> where rows of `cols` elements
/// and all pointers (null ones count as aligned) allow it, else 1.
template <class... T, class F>
void with_pack(int64_t cols, std::initializer_list<const void*> pointers, F&& f) {
  constexpr int N = kPackOf<T...>;
  if (cols % N == 0 && aligned(pointers)) {
    f.template operator()<N>();
  } else {
    f.template operator()<1>();
  }
}

}  // namespace ltrain::cuda
