// Stub for builds without CUDA.
#ifndef LTRAIN_CUDA
#include "kernels/matmul/grouped/grouped_gemm_check.h"
#include "kernels/tensor/kernel.h"

namespace ltrain {

std::string compare_grouped_gemms(Stream&, DType) { no_cuda_in_this_build("comparing grouped products"); }
std::string grouped_wgmma_unusable(Stream&, DType, bool*) { no_cuda_in_this_build("grouped products"); }

}  // namespace ltrain
#endif
