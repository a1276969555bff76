// CUDA kernels on the CPU, for tests: each thread of a block is a fibre, blocks run one after another.
//
// A fibre runs until __syncthreads() or a shuffle, where it waits for the other fibres of its block or warp.
// A missing barrier therefore shows as a wrong result, deterministically. Slow: for small shapes only. It
// cannot show speed, races within a warp, or register limits.
#pragma once
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <tuple>

#include "kernels/tensor/stream.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  constexpr explicit dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace ltrain::cuda {

// Overloads by type, as on the device; the C library's functions take doubles only.
using std::erf, std::exp, std::exp2, std::fabs, std::isfinite, std::log, std::log1p, std::log2, std::sqrt,
    std::tanh;

/// Bytes moved by load() and store() of pack_cuda.h and by asynchronous copies, and the number of 16-byte and
/// of smaller accesses.
struct EmulatedAccesses {
  int64_t loaded = 0, stored = 0, wide = 0, narrow = 0;
  void count(int64_t& bytes, int64_t size) {
    bytes += size;
    ++(size == 16 ? wide : narrow);
  }
};

struct Emulated {
  dim3 thread, block;  ///< indices of the running fibre
  dim3 block_dim, grid_dim;
  void* shared = nullptr;     ///< shared memory of the running block
  EmulatedAccesses accesses;  ///< counts of the running kernel
};
extern constinit thread_local Emulated emulated_state;
inline Emulated& emulated() { return emulated_state; }

/// Runs `body` once for every thread of every block.
void emulate(dim3 grid, int threads, int64_t shared, const std::function<void()>& body);
/// Makes the running fibre wait for all of its block.
void emulated_barrier();
/// Barrier `id` of `threads` threads of the block; with `wait` false the fibre only arrives.
void emulated_named_barrier(int id, int threads, bool wait);
/// Makes the running fibre wait until `ready` returns true; an error if all fibres of the block wait.
void emulated_wait_until(const std::function<bool()>& ready, const char* what);
/// Reports a change that other fibres may wait for.
void emulated_moved();
/// State of Hopper's instructions (emulated_hopper_cuda.cpp) at the begin of a block, at its end, and after
/// an error in a block. emulated_hopper_end() fails if an operation is still in progress.
void emulated_hopper_begin(int threads, void* shared, int64_t bytes);
void emulated_hopper_end();
void emulated_hopper_drop();
/// Each lane of the running warp passes up to four words and waits for the other lanes. Returns the round.
/// emulated_word() reads any lane's words of a round, until this lane passes its next ones.
int64_t emulated_give(std::initializer_list<uint64_t> words);
uint64_t emulated_word(int64_t round, int lane, int which);
/// Words that each lane passed.
using WarpWords = std::array<std::array<uint64_t, 4>, 32>;
/// Each lane of the running warp passes up to four words. After all have, `together` is called once, before
/// any lane continues; it may write to addresses in the words.
void emulated_together(std::initializer_list<uint64_t> words, void (*together)(const WarpWords&));
/// Each lane of the running warp passes a word and gets the word of lane (lane ^ mask).
uint64_t emulated_exchange(uint64_t word, int mask);

/// Asynchronous copies of the running thread into shared memory, in groups, done as late as allowed: when it
/// waits. Until then the destination holds NaNs. `from` null: zeros.
void emulated_copy(void* to, const void* from, int bytes);
void emulated_commit();
void emulated_wait(size_t groups_left);
/// Hook of tests that count every byte (tests/cuda_traffic): reports the device memory that asynchronous and
/// bulk copies read and write without loads or stores of threads. Null: no hook.
extern std::atomic<void (*)(const void* at, int64_t bytes, bool stored)> emulated_on_copy;
inline void emulated_copied(const void* at, int64_t bytes, bool stored) {
  if (const auto told = emulated_on_copy.load(std::memory_order_relaxed)) told(at, bytes, stored);
}
/// For negative controls: ldmatrix results with two lanes exchanged.
extern std::atomic<bool> emulated_lanes_swapped;

/// Accesses of all finished kernels, for tests that count bytes. `launches`: kernel launches. `waits`: host
/// waits for streams.
struct EmulatedTraffic {
  std::atomic<int64_t> loaded{0}, stored{0}, wide{0}, narrow{0}, launches{0}, waits{0};
  void clear() { loaded = stored = wide = narrow = launches = waits = 0; }
};
extern EmulatedTraffic emulated_traffic;

template <class T>
T* shared_memory() {
  return static_cast<T*>(emulated().shared);
}

/// Enqueues device work on its stream (emulated_stream_cuda.cpp).
void enqueue(Stream& s, std::function<void()> work);

/// Throws if CUDA would refuse a launch: no blocks, too many blocks or threads, or too much shared memory.
void check_launch(dim3 grid, int threads, int64_t shared);
[[noreturn]] void refuse_access(const void* at, size_t bytes);
/// Throws if a GPU would fault: an access of `bytes` at an address that is not a multiple of them.
inline void check_access(const void* at, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) refuse_access(at, bytes);
}

template <class... P, class... A>
void launch(Stream& s, dim3 grid, int threads, int64_t shared, void (*kernel)(P...), A... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;  // same as launch() for a card (kernel_cuda.h)
  check_launch(grid, threads, shared);
  emulated_traffic.launches.fetch_add(1, std::memory_order_relaxed);
  enqueue(s, [=] { emulate(grid, threads, shared, [&] { kernel(static_cast<P>(args)...); }); });
}

}  // namespace ltrain::cuda

#define threadIdx (::ltrain::cuda::emulated().thread)
#define blockIdx (::ltrain::cuda::emulated().block)
#define blockDim (::ltrain::cuda::emulated().block_dim)
#define gridDim (::ltrain::cuda::emulated().grid_dim)

inline void __syncthreads() { ::ltrain::cuda::emulated_barrier(); }
/// Not atomic: blocks and threads run one after another.
inline unsigned atomicMax(unsigned* at, unsigned v) {
  const unsigned before = *at;
  if (v > before) *at = v;
  return before;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
/// Lanes with the same word.
inline unsigned __match_any_sync(unsigned, unsigned v) {
  const int64_t round = ::ltrain::cuda::emulated_give({v});
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (::ltrain::cuda::emulated_word(round, lane, 0) == v) same |= 1u << lane;
  return same;
}
inline unsigned __ballot_sync(unsigned, bool v) {
  const int64_t round = ::ltrain::cuda::emulated_give({v});
  unsigned those = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (::ltrain::cuda::emulated_word(round, lane, 0)) those |= 1u << lane;
  return those;
}
inline bool __any_sync(unsigned lanes, bool v) { return __ballot_sync(lanes, v) != 0; }
/// Value of the lane `delta` before; the first lanes keep their own.
inline unsigned __shfl_up_sync(unsigned, unsigned v, int delta) {
  const int64_t round = ::ltrain::cuda::emulated_give({v});
  const int lane = static_cast<int>(threadIdx.x % 32);
  return lane < delta ? v : static_cast<unsigned>(::ltrain::cuda::emulated_word(round, lane - delta, 0));
}
inline void __syncwarp() { ::ltrain::cuda::emulated_exchange(0, 0); }
template <class T>
T __shfl_xor_sync(unsigned, T v, int mask) {
  static_assert(sizeof(T) <= 8);
  uint64_t word = 0;
  __builtin_memcpy(&word, &v, sizeof(T));
  word = ::ltrain::cuda::emulated_exchange(word, mask);
  __builtin_memcpy(&v, &word, sizeof(T));
  return v;
}
