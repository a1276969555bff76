// Host ranges that NVIDIA's tools show beside kernels, in the domain "ltrain". Nearly free without a tool.
// Only in builds with CUDA.
#pragma once
#include <string_view>

namespace ltrain::cuda {

void nvtx_push(std::string_view name);
void nvtx_pop();

}  // namespace ltrain::cuda
