// Blocks that stay: a grid of as many as a card runs at a time, each of which takes one piece of the kernel's
// work after another, as it gets done. Where other kernels hold multiprocessors (those of collectives do),
// blocks that begin late find less left, and nobody waits for a share of theirs.
#pragma once
#include <cstdint>

#include "kernels/tensor/stream.h"
#ifdef LTRAIN_CUDA_EMULATED
#include "kernels/cuda/emulation_cuda.h"
#endif

namespace ltrain::cuda {

/// Of the card that this thread uses.
int64_t multiprocessors();
/// In memory of the device that the stream owns; 0 whenever no kernel uses it.
unsigned* work_counter(Stream& s);

/// A block's first piece has the number of the block, of which a grid has no more than pieces; this is its
/// next one. `pieces` or more: there is none left, and the block asks no more. The counter of the stream is 0
/// again when all blocks have been told so.
#ifdef LTRAIN_CUDA_EMULATED
int next_piece(unsigned* counter, int pieces);
#elif defined(__CUDACC__)
__device__ __forceinline__ int next_piece(unsigned* counter, int pieces) {
  // Each block asks until it is told that there is none left: as many times as there are pieces, by all.
  return static_cast<int>(gridDim.x + atomicInc(counter, static_cast<unsigned>(pieces) - 1));
}
#endif

}  // namespace ltrain::cuda
