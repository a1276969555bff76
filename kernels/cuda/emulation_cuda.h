// CUDA kernels on the CPU, for tests: each thread of a block is a fibre, blocks run one after another.
//
// A fibre runs until __syncthreads() or a shuffle, where it waits for the others of its block or warp, so
// that a missing barrier shows as a wrong result, deterministically. Slow: for small shapes only. What it
// cannot show: speed, races inside a warp, limits of registers.
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

// By type, as on the device; the C library's take doubles only.
using std::exp, std::exp2, std::fabs, std::isfinite, std::log, std::log1p, std::log2, std::sqrt, std::tanh;

/// Bytes that load() and store() of pack_cuda.h moved, and their accesses of 16 bytes and of less.
struct EmulatedAccesses {
  int64_t loaded = 0, stored = 0, wide = 0, narrow = 0;
  void count(int64_t& bytes, int64_t size) {
    bytes += size;
    ++(size == 16 ? wide : narrow);
  }
};

struct Emulated {
  dim3 thread, block;  ///< of the running fibre
  dim3 block_dim, grid_dim;
  void* shared = nullptr;     ///< of the running block
  EmulatedAccesses accesses;  ///< of the running kernel
};
extern constinit thread_local Emulated emulated_state;
inline Emulated& emulated() { return emulated_state; }

/// Runs `body` once for every thread of every block.
void emulate(dim3 grid, int threads, int64_t shared, const std::function<void()>& body);
/// The running fibre waits for all of its block.
void emulated_barrier();
/// Barrier `id` of `threads` threads of the block; with `wait` false the fibre goes on.
void emulated_named_barrier(int id, int threads, bool wait);
/// The running fibre waits until `ready` says so; when all fibres of the block wait, that is an error.
void emulated_wait_until(const std::function<bool()>& ready, const char* what);
/// Something happened that other fibres may wait for.
void emulated_moved();
/// The state of Hopper's instructions (emulated_hopper_cuda.cpp): a block begins; a block has ended, which
/// fails where something is still under way; an error ended a block.
void emulated_hopper_begin(int threads, void* shared, int64_t bytes);
void emulated_hopper_end();
void emulated_hopper_drop();
/// Each lane of the running warp gives up to four words; when all have, emulated_word() reads any lane's,
/// until this lane gives its next ones. Returns the round that they were given in.
int64_t emulated_give(std::initializer_list<uint64_t> words);
uint64_t emulated_word(int64_t round, int lane, int which);
/// By lane, what it gave.
using WarpWords = std::array<std::array<uint64_t, 4>, 32>;
/// Each lane of the running warp gives up to four words. When all have, `together` is called once, before any
/// of them goes on; it may write where words point to.
void emulated_together(std::initializer_list<uint64_t> words, void (*together)(const WarpWords&));
/// Each lane of the running warp gives a word and takes that of lane (lane ^ mask).
uint64_t emulated_exchange(uint64_t word, int mask);

/// Copies of the running thread into shared memory that are done in groups, as late as they may be: when it
/// waits. Until then there are NaNs. Null: zeros.
void emulated_copy(void* to, const void* from, int bytes);
void emulated_commit();
void emulated_wait(size_t groups_left);
/// Of tests that count every byte (tests/cuda_traffic): told of what asynchronous and bulk copies read and
/// write of the device's memory, which no thread of a kernel loads or stores itself. Null: nobody asks.
extern std::atomic<void (*)(const void* at, int64_t bytes, bool stored)> emulated_on_copy;
inline void emulated_copied(const void* at, int64_t bytes, bool stored) {
  if (const auto told = emulated_on_copy.load(std::memory_order_relaxed)) told(at, bytes, stored);
}
/// For negative controls: matrices come out of shared memory with two lanes exchanged.
extern std::atomic<bool> emulated_lanes_swapped;

/// Accesses of all kernels that have ended, for tests that count bytes. `launches`: of kernels. `waits`: of
/// the host for streams.
struct EmulatedTraffic {
  std::atomic<int64_t> loaded{0}, stored{0}, wide{0}, narrow{0}, launches{0}, waits{0};
  void clear() { loaded = stored = wide = narrow = launches = waits = 0; }
};
extern EmulatedTraffic emulated_traffic;

template <class T>
T* shared_memory() {
  return static_cast<T*>(emulated().shared);
}

/// Puts work of the device on its stream (emulated_stream_cuda.cpp).
void enqueue(Stream& s, std::function<void()> work);

/// Fails where CUDA refuses a launch: no blocks, too many blocks or threads, or too much shared memory.
void check_launch(dim3 grid, int threads, int64_t shared);
[[noreturn]] void refuse_access(const void* at, size_t bytes);
/// Fails where a GPU faults: an access of `bytes` at an address that is not a multiple of them.
inline void check_access(const void* at, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) refuse_access(at, bytes);
}

template <class... P, class... A>
void launch(Stream& s, dim3 grid, int threads, int64_t shared, void (*kernel)(P...), A... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;  // as the launch for a card (kernel_cuda.h)
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
/// Blocks and threads run one after another.
inline unsigned atomicMax(unsigned* at, unsigned v) {
  const unsigned before = *at;
  if (v > before) *at = v;
  return before;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
/// The lanes that gave the same word.
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
/// Of the lane `delta` before; its own in the first lanes.
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
