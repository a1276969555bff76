// Tensor maps, encoded by the driver; no driver library is linked.
#include "kernels/cuda/tensor_map_cuda.h"

#include "base/error.h"
#include "kernels/cuda/device_cuda.h"

namespace ltrain::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const char* name = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
  const cudaError_t e = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t e = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  cuda_check(e, "asking the driver for tensor maps");
  LT_CHECK(found && result == cudaDriverEntryPointSuccess, "expected a driver with the function {}, got none",
           name);
  return reinterpret_cast<Encode>(found);
}

}  // namespace

TensorMap make_tensor_map(const void* data, const MapShape& shape) {
  static const Encode encode = find_encode();
  std::array<cuuint64_t, 4> dims;
  std::array<cuuint64_t, 3> strides;
  for (size_t i = 0; i < 4; ++i) dims[i] = static_cast<cuuint64_t>(shape.dims[i]);
  for (size_t i = 0; i < 3; ++i) strides[i] = static_cast<cuuint64_t>(shape.strides[i]);
  const cuuint32_t box[4] = {kPanel, static_cast<cuuint32_t>(shape.box_rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  // 16-bit integers: bits are copied unchanged, NaNs included.
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<void*>(data), dims.data(), strides.data(),
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  LT_CHECK(result == CUDA_SUCCESS,
           "expected the driver to accept a tensor map of {} x {} x {} x {}, got CUresult {}", shape.dims[0],
           shape.dims[1], shape.dims[2], shape.dims[3], static_cast<int>(result));
  return map;
}

}  // namespace ltrain::cuda
