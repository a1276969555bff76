// Persistent blocks: a grid of as many blocks as a card runs at a time, each of which takes one piece of the
// kernel's work after another. If other kernels (such as collectives) hold multiprocessors, blocks that start
// late find less work left, and no work is bound to them.
#pragma once
#include <cstdint>

#include "kernels/tensor/stream.h"
#ifdef LTRAIN_CUDA_EMULATED
#include "kernels/cuda/emulation_cuda.h"
#endif

namespace ltrain::cuda {

/// Multiprocessors of the card that this thread uses.
int64_t multiprocessors();
/// Most bytes of shared memory that a block may have on it.
int64_t most_shared();
/// Counter in device memory that the stream owns; 0 while no kernel uses it.
unsigned* work_counter(Stream& s);

/// Next piece of a block. A block's first piece has the block's number; the grid has no more blocks than
/// pieces. A result of `pieces` or more means that no work is left, and the block must not ask again. The
/// stream's counter is 0 again after all blocks have got that answer.
#ifdef LTRAIN_CUDA_EMULATED
int next_piece(unsigned* counter, int pieces);
#elif defined(__CUDACC__)
__device__ __forceinline__ int next_piece(unsigned* counter, int pieces) {
  // Each block asks until it gets the final answer, so that all blocks together ask `pieces` times.
  return static_cast<int>(gridDim.x + atomicInc(counter, static_cast<unsigned>(pieces) - 1));
}
#endif

}  // namespace ltrain::cuda
