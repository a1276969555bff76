// Stub for builds without CUDA or without the headers of cuDNN's frontend.
#if !defined(LTRAIN_CUDA) || defined(LTRAIN_NO_CUDNN)
#include "kernels/attention/attention_cudnn.h"

namespace ltrain {

std::string cudnn_missing() {
#ifdef LTRAIN_CUDA
  return "this build of ltrain was made without the headers of cuDNN's frontend (scripts/setup-cuda.sh gets "
         "them)";
#else
  return "this build of ltrain has no CUDA";
#endif
}
std::string cudnn_version() { return "none"; }
std::string cudnn_attention(Stream&, const CudnnAttention&, const CudnnBuffers&) { return cudnn_missing(); }

}  // namespace ltrain
#endif
