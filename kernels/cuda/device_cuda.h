// Code shared by the files that call the CUDA runtime.
#pragma once
#include <cuda_runtime.h>

#include "kernels/tensor/stream_cuda.h"

namespace ltrain::cuda {

cudaStream_t native(Stream& s);
/// Throws Error (internal) unless `result` is success, with the runtime's name and text of the error.
void cuda_check(cudaError_t result, const char* what);

}  // namespace ltrain::cuda
