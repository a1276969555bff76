// Stub for builds without CUDA.
#ifndef LTRAIN_CUDA
#include "kernels/attention/attention_check.h"
#include "kernels/tensor/kernel.h"

namespace ltrain {

std::string compare_attention_kernels(Stream&, DType, int64_t, int64_t, const AttentionTamper&) {
  no_cuda_in_this_build("comparing attention kernels");
}
std::string wgmma_unusable(Stream&, DType, int64_t, bool*) { no_cuda_in_this_build("attention kernels"); }

}  // namespace ltrain
#endif
