// Tensor maps: descriptors of tensors in global memory for Hopper's bulk copies (hopper_cuda.h).
#pragma once
#ifndef LTRAIN_CUDA_EMULATED
#include <cuda.h>
#endif

#include <array>
#include <cstdint>

namespace ltrain::cuda {

constexpr int kPanel = 64;                     ///< elements of a row of a box: 128 bytes, one swizzled row
constexpr int kPanelBytes = 2 * kPanel;        ///< bytes of a row
constexpr int kSwizzleAtom = 8 * kPanelBytes;  ///< alignment of boxes in shared memory

/// A tensor of two-byte elements, innermost dim first; strides in bytes, from dim 1 on.
struct MapShape {
  std::array<int64_t, 4> dims;
  std::array<int64_t, 3> strides;
  int box_rows;  ///< rows (dim 1) of a box; a box has kPanel elements of dim 0 and one of the others
};

#ifdef LTRAIN_CUDA_EMULATED
struct TensorMap {
  const char* data;
  MapShape shape;
};
#else
using TensorMap = CUtensorMap;
#endif

/// Map for copies into and out of shared memory with the 128-byte swizzle. Elements beyond the dims are read
/// as zeros and not written. Throws Error (internal) if the driver refuses the map: `data` and strides must
/// be multiples of 16 bytes.
TensorMap make_tensor_map(const void* data, const MapShape& shape);

}  // namespace ltrain::cuda
