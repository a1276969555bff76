// What files that call the CUDA runtime share.
#pragma once
#include <cuda_runtime.h>

#include "kernels/tensor/stream_cuda.h"

namespace ltrain::cuda {

cudaStream_t native(Stream& s);
/// Throws Error (internal) for what is no success, with the runtime's text and name for it.
void cuda_check(cudaError_t result, const char* what);

}  // namespace ltrain::cuda
