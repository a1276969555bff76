// Matrix product.
#pragma once
#include "kernels/core/cpu_isa.h"
#include "kernels/core/stream.h"

namespace ltrain {

struct MatmulArgs {
  bool trans_a = false, trans_b = false;
  bool accumulate = false;  ///< out += instead of out =
  Tensor bias;              ///< (n), dtype of out, added to every row; optional
};

/// out = op(a) op(b) [+ bias] [+ out], op(x) = x or x^T.  2 m n k operations.
/// op(a): (m, k), op(b): (k, n), out: (m, n). a and b of one dtype f32, bf16 or f64; out of that dtype, or f32 from
/// bf16. Sums in f32 (f64 for f64). Nothing aliases.
void matmul(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args = {});

/// oneDNN for f32 and bf16 (matmul_onednn.cpp).
void matmul_onednn(Tensor out, Tensor a, Tensor b, const MatmulArgs& args);
/// f64, by cache blocks over the micro kernel.
LT_CPU_KERNEL(void matmul_f64_cpu(double* out, const double* a, const double* b, const double* bias, int64_t m,
                                  int64_t n, int64_t k, bool trans_a, bool trans_b, bool accumulate);)

}  // namespace ltrain
