// cuDNN's plans for cards that this machine does not have: tests of CUDA builds without a GPU.
#pragma once
#include <string>

#include "kernels/attention/attention_cudnn.h"

namespace ltrain {

struct CudnnPlanned {
  std::string refused;    ///< cuDNN's reason against the call; empty if it has a plan
  int64_t workspace = 0;  ///< bytes that the plan needs
};
/// `card`: JSON with which cuDNN describes a device. capability: 90 for sm_90.
CudnnPlanned cudnn_plan_for(const CudnnAttention& what, int capability, const std::string& card);

}  // namespace ltrain
