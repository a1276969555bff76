// Which kernels the products of experts go to on a GPU.
#pragma once
#include <string>

#include "kernels/tensor/stream.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// "one launch for all experts, on tensor cores (mma)", on a GPU of this compute capability; empty for a
/// model without experts. Fails where LTRAIN_GROUPED_GEMM asks for what cannot be. `why_not_wgmma`: what
/// try_experts_kernels() said.
std::string experts_report(const Recipe& recipe, int capability, const std::string& why_not_wgmma = "");
/// Where products of experts are to be by kernels that are compared with others before their first use
/// (grouped_gemm_check.h): does that, and says why they are not used. Before the run has taken the GPU's
/// memory, of which a process that is started for it needs some.
std::string try_experts_kernels(const Recipe& recipe, int capability, Stream& compute);

}  // namespace ltrain
