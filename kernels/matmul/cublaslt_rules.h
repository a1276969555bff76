// Rules of cuBLASLt for matmuls on sm_90. The real call and the emulated one on the CPU check the same rules,
// so that a rule once observed on a card is tested without one.
#pragma once
#include <string>

#include "kernels/matmul/matmul.h"

namespace ltrain {

/// Returns the rule of cuBLASLt that the matmul out (m, n) = op(a) op(b) breaks; empty if it breaks none.
/// `scale_a`, `scale_b`: device pointers of the scales of FP8 operands, else null. Sources:
/// "cublasLtMatmul()" in NVIDIA's cuBLAS documentation (table of FP8 types and the requirements below it);
/// the 16-byte alignment of scales was observed on an H200 with cuBLASLt 13.1.
std::string cublaslt_obstacle(const Tensor& out, const Tensor& a, const Tensor& b, const float* scale_a,
                              const float* scale_b, const MatmulArgs& args);
/// Throws Error (internal) with the rule.
void check_cublaslt(const Tensor& out, const Tensor& a, const Tensor& b, const float* scale_a,
                    const float* scale_b, const MatmulArgs& args);

}  // namespace ltrain
