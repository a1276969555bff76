// Which kernels the products of experts go to on a GPU.
#pragma once
#include <string>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// "one launch for all experts, on tensor cores (mma)", on a GPU of this compute capability; empty for a
/// model without experts. Fails where LTRAIN_GROUPED_GEMM asks for what cannot be.
std::string experts_report(const Recipe& recipe, int capability);

}  // namespace ltrain
