// The matmuls that cuBLASLt takes on a card of sm_90. The real call and its stand-in on a CPU ask the same
// function, so that a rule that a card has shown once is found without one.
#pragma once
#include <string>

#include "kernels/matmul/matmul.h"

namespace ltrain {

/// Says which rule of cuBLASLt the matmul out (m, n) = op(a) op(b) breaks; empty where it breaks none.
/// `scale_a`, `scale_b`: device pointers of the scales of FP8 operands, else null.
/// Sources: "cublasLtMatmul()" in NVIDIA's cuBLAS documentation (table of FP8 types and the requirements
/// below it); the 16 bytes of scales were seen on an H200 with cuBLASLt 13.1.
std::string cublaslt_obstacle(const Tensor& out, const Tensor& a, const Tensor& b, const float* scale_a,
                              const float* scale_b, const MatmulArgs& args);
/// Throws Error (internal) with the rule.
void check_cublaslt(const Tensor& out, const Tensor& a, const Tensor& b, const float* scale_a,
                    const float* scale_b, const MatmulArgs& args);

}  // namespace ltrain
