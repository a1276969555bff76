// Whether a GPU can run what this build compiled.
#pragma once
#include <string>

namespace ltrain::cuda {

/// Empty where this thread's GPU can, else what CUDA says.
std::string probe();

}  // namespace ltrain::cuda
