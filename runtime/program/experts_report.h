// Kernels for the expert matmuls of a MoE model on a GPU.
#pragma once
#include <string>

#include "kernels/tensor/stream.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// "one launch for all experts, on tensor cores (mma)", for a GPU of this compute capability; empty for a
/// model without experts. Fails if LTRAIN_GROUPED_GEMM requests an impossible kernel. `why_not_wgmma`: result
/// of try_experts_kernels().
std::string experts_report(const Recipe& recipe, int capability, const std::string& why_not_wgmma = "");
/// Compares the wgmma expert kernels with reference kernels in a child process, if the run would use them
/// (grouped_gemm_check.h). Returns why they are not used; empty: they are used, or need no check. Call it
/// before the run allocates the GPU's memory, because the child process needs some.
std::string try_experts_kernels(const Recipe& recipe, int capability, Stream& compute);

}  // namespace ltrain
