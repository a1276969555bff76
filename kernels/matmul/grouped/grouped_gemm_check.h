// Comparison of the grouped GEMM kernels with each other, on the GPU of the run.
#pragma once
#include <string>

#include "kernels/tensor/dtype.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Runs small problems of each kind by wgmma and by mma. Returns an empty string if they agree, else the
/// tensor and the size of the difference. Waits for the stream and uses its scratch.
std::string compare_grouped_gemms(Stream& s, DType t);

/// Reason why the wgmma kernel is not used on this GPU for this type; empty if it is (why_unusable() of
/// kernel_trial.h). Throws instead if LTRAIN_GROUPED_GEMM names it.
std::string grouped_wgmma_unusable(Stream& s, DType t, bool* news = nullptr);

}  // namespace ltrain
