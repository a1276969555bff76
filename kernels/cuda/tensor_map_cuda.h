// Tensor maps: what the bulk copies of Hopper know of a tensor in global memory (hopper_cuda.h).
#pragma once
#ifndef LTRAIN_CUDA_EMULATED
#include <cuda.h>
#endif

#include <array>
#include <cstdint>

namespace ltrain::cuda {

constexpr int kPanel = 64;               ///< elements of a row that a box has: 128 bytes, one swizzled row
constexpr int kPanelBytes = 2 * kPanel;  ///< of a row
constexpr int kSwizzleAtom = 8 * kPanelBytes;  ///< boxes in shared memory begin at its multiples

/// A tensor of two-byte elements, innermost dim first; strides in bytes, of the dims after the first.
struct MapShape {
  std::array<int64_t, 4> dims;
  std::array<int64_t, 3> strides;
  int box_rows;  ///< of dim 1; a box has kPanel of dim 0 and one of the others
};

#ifdef LTRAIN_CUDA_EMULATED
struct TensorMap {
  const char* data;
  MapShape shape;
};
#else
using TensorMap = CUtensorMap;
#endif

/// For copies into shared memory with the 128-byte swizzle, and out of it; what lies beyond the dims arrives
/// as zeros, and is not written.
/// Throws Error (internal) for what the driver refuses: `data` and strides are multiples of 16 bytes.
TensorMap make_tensor_map(const void* data, const MapShape& shape);

}  // namespace ltrain::cuda
