// Hopper's (sm_90a) bulk copies into shared memory, their mbarriers, and the exchange of registers between
// warpgroups. Two implementations, as in matrix_cuda.h. The emulated one (emulated_hopper_cuda.cpp) is as
// late as the device may be: the destination of a copy is NaN until a thread waits for its barrier.
//
// PTX manual: "mbarrier", "cp.async.bulk", "cp.async.bulk.tensor", "setmaxnreg".
#pragma once
#include "kernels/cuda/kernel_cuda.h"
#include "kernels/cuda/tensor_map_cuda.h"

/// Defined if Hopper kernels have a body. Otherwise they compile to nothing, and are not launched.
#if defined(LTRAIN_CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LT_HOPPER
#endif

namespace ltrain::cuda {

constexpr int kWarpgroup = 4 * kWarp;
constexpr int64_t kMostShared = 232448;  ///< most shared memory of a block on H100, in bytes

/// Barrier in shared memory. A phase ends after all its arrivals and all its announced bytes; phases have
/// parities 0, 1, 0, ...
using Mbarrier = uint64_t;

/// Index of one of kStages buffers in shared memory, and the parity of its barriers' phases.
template <int kStages>
struct Ring {
  int stage = 0, parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

#ifdef LTRAIN_CUDA_EMULATED

void mbarrier_init(Mbarrier* barrier, int arrivals);
void mbarrier_init_done();
void mbarrier_arrive(Mbarrier* barrier);
inline void mbarrier_arrive_if(bool arrives, Mbarrier* barrier) {
  if (arrives) mbarrier_arrive(barrier);
}
void mbarrier_expect(Mbarrier* barrier, int bytes);
void mbarrier_wait(Mbarrier* barrier, int parity);
void load_box(void* shared, const TensorMap& map, Mbarrier* barrier, int64_t col, int64_t row, int64_t third,
              int64_t fourth);
void load_bytes(void* shared, const void* from, int bytes, Mbarrier* barrier);
void store_box(const TensorMap& map, const void* shared, int64_t col, int64_t row, int64_t third,
               int64_t fourth);
void commit_stores();
void wait_for_stores();
uint32_t shared_address(const void* p);

inline void check_registers(int n) {
  LT_CHECK(n >= 24 && n <= 256 && n % 8 == 0,
           "expected setmaxnreg of 24 to 256 registers in steps of 8, got {}", n);
}
template <int n>
void more_registers() {
  check_registers(n);
}
template <int n>
void fewer_registers() {
  check_registers(n);
}
inline int uniform(int v) { return v; }
inline int warp_index() { return static_cast<int>(threadIdx.x / kWarp); }
void show_to_products();
inline void named_sync(int id, int threads) { emulated_named_barrier(id, threads, true); }
inline void named_arrive(int id, int threads) { emulated_named_barrier(id, threads, false); }

/// The block's shared memory, aligned for boxes.
template <class T>
T* shared_boxes() {
  return shared_memory<T>();
}

#else

/// The block's shared memory, as in shared_memory(), aligned for boxes.
template <class T>
__device__ __forceinline__ T* shared_boxes() {
  extern __shared__ __align__(1024) unsigned char boxes[];
  if (__cvta_generic_to_shared(boxes) % kSwizzleAtom != 0) __trap();
  return reinterpret_cast<T*>(boxes);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Called by one thread, before mbarrier_init_done() and a __syncthreads().
__device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
/// Makes this thread's initialised barriers visible to the copies.
__device__ __forceinline__ void mbarrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// mbarrier_arrive() of the threads with `arrives`, without a branch in nvcc's eyes: after one on the lane
/// ptxas takes the warp's values for different ones, and moves each descriptor of a wgmma from other
/// registers.
__device__ __forceinline__ void mbarrier_arrive_if(bool arrives, Mbarrier* barrier) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(
          shared_address(barrier)),
      "r"(static_cast<int>(arrives))
      : "memory");
}
/// Arrives, and makes the phase also wait for `bytes` of copies.
__device__ __forceinline__ void mbarrier_expect(Mbarrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
/// Waits until the phase of this parity has ended; the phase before the first counts as ended.
__device__ __forceinline__ void mbarrier_wait(Mbarrier* barrier, int parity) {
  uint32_t ended;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!ended);
}
/// Copies one box at these coordinates into shared memory; its bytes complete at the barrier.
__device__ __forceinline__ void load_box(void* shared, const TensorMap& map, Mbarrier* barrier, int64_t col,
                                         int64_t row, int64_t third, int64_t fourth) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(static_cast<int>(col)), "r"(static_cast<int>(row)),
      "r"(static_cast<int>(third)), "r"(static_cast<int>(fourth))
      : "memory");
}
/// Copies contiguous bytes. Addresses and size are multiples of 16.
__device__ __forceinline__ void load_bytes(void* shared, const void* from, int bytes, Mbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

/// Copies one box, in the layout of load_box, out of shared memory to these coordinates; elements beyond the
/// tensor are skipped. Called by one thread, after a barrier that follows show_to_products() of the threads
/// that wrote it.
__device__ __forceinline__ void store_box(const TensorMap& map, const void* shared, int64_t col, int64_t row,
                                          int64_t third, int64_t fourth) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(shared_address(shared)), "r"(static_cast<int>(col)), "r"(static_cast<int>(row)),
      "r"(static_cast<int>(third)), "r"(static_cast<int>(fourth))
      : "memory");
}
/// Makes this thread's stores since the last commit a group.
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until all groups of this thread have been read from shared memory. Their writes are done at the end
/// of the kernel.
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// Sets the registers of each thread from here on. Called by all threads of a warpgroup.
template <int n>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

/// A value that all lanes of a warp share, in a form that the compiler knows to be uniform. wgmmas may then
/// stay in flight across branches on it.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(kAllLanes, v, 0); }
/// Index of this thread's warp in the block.
__device__ __forceinline__ int warp_index() { return uniform(static_cast<int>(threadIdx.x / kWarp)); }

/// Makes this thread's writes to shared memory visible to wgmmas and bulk copies that start after a barrier.
__device__ __forceinline__ void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Barrier `id` (1 to 15) of `threads` threads. named_sync waits, named_arrive only arrives.
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#endif
#endif

}  // namespace ltrain::cuda
