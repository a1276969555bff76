#include "kernels/cuda/probe_cuda.h"

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "kernels/tensor/stream_cuda.h"

#ifndef LTRAIN_CUDA_EMULATED
#include <cuda_runtime.h>
#endif

namespace ltrain::cuda {
namespace {

#ifdef LTRAIN_CUDA_EMULATED
/// LTRAIN_EMULATED_PROBE: the emulated card's answer.
std::string probe() {
  const char* given = std::getenv("LTRAIN_EMULATED_PROBE");
  return given ? given : "";
}
#else
__global__ void nothing() {}

std::string probe() {
  cudaFuncAttributes attributes;
  const cudaError_t e = cudaFuncGetAttributes(&attributes, nothing);
  if (e == cudaSuccess) return "";
  cudaGetLastError();  // clears it for the next call
  return cudaGetErrorString(e);
}
#endif

}  // namespace

void check_card(int index) {
  const std::string why = probe();
  if (why.empty()) return;
  const DeviceInfo card = device_info();
  fail(ExitCode::usage,
       "GPU {} ({}, compute capability {}.{}) cannot run the kernels of this build: {}; what would help: a "
       "build for it (-DCMAKE_CUDA_ARCHITECTURES={}-real), or other GPUs in CUDA_VISIBLE_DEVICES",
       index, card.name, card.capability / 10, card.capability % 10, why, card.capability);
}

}  // namespace ltrain::cuda
