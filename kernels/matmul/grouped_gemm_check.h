// The kernels of grouped products against each other, on the GPU that is to run them.
#pragma once
#include <string>

#include "kernels/tensor/dtype.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Small products of each kind by wgmma and by mma: empty where they agree, else what does not and by how
/// much. Waits for the stream, and uses its scratch.
std::string compare_grouped_gemms(Stream& s, DType t);

/// Why the wgmma kernel is not used on this GPU for this type; empty where it is (why_unusable() of
/// kernel_trial.h). Where LTRAIN_GROUPED_GEMM asks for it by name, that is an error instead.
std::string grouped_wgmma_unusable(Stream& s, DType t, bool* news = nullptr);

}  // namespace ltrain
