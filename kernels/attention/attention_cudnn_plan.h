// Plans of cuDNN for cards that are not here: for tests of builds with CUDA on machines without a GPU.
#pragma once
#include <string>

#include "kernels/attention/attention_cudnn.h"

namespace ltrain {

struct CudnnPlanned {
  std::string refused;    ///< what cuDNN says against it; empty: there is a plan
  int64_t workspace = 0;  ///< bytes that the plan needs
};
/// `card`: in the JSON that cuDNN describes a device by. capability: 90 for sm_90.
CudnnPlanned cudnn_plan_for(const CudnnAttention& what, int capability, const std::string& card);

}  // namespace ltrain
