#include "kernels/cuda/probe_cuda.h"

#ifndef LTRAIN_CUDA_EMULATED
#include <cuda_runtime.h>

namespace ltrain::cuda {
namespace {

__global__ void nothing() {}

}  // namespace

std::string probe() {
  cudaFuncAttributes attributes;
  const cudaError_t e = cudaFuncGetAttributes(&attributes, nothing);
  if (e == cudaSuccess) return "";
  cudaGetLastError();  // which would be the next call's
  return cudaGetErrorString(e);
}

}  // namespace ltrain::cuda
#endif
