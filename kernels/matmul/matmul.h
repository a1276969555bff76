// Matrix product.
#pragma once
#include <array>

#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

struct MatmulArgs {
  bool trans_a = false, trans_b = false;
  bool accumulate = false;  ///< out += instead of out =
  Tensor bias;              ///< (n), dtype of out, added to every row; optional
};

/// out = op(a) op(b) [+ bias] [+ out], op(x) = x or x^T.  2 m n k operations.
/// op(a): (m, k), op(b): (k, n), out: (m, n). a and b of one dtype f32, bf16, f16 or f64; out of that
/// dtype, or f32 from a half. Sums in f32 (f64 for f64). Where the stream says so, operands of f32 are first
/// rounded to TF32 (to nearest even; a GPU does it in its own way). Nothing aliases.
void matmul(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args = {});

/// The same on a device, without checks, costs or placements: for ops that are made of products.
void run_matmul(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args);

/// Does all there is to do for an output without elements or a contraction of none (zeros, or what is there
/// with `accumulate`), which no library takes; returns whether it did.
bool matmul_without_work(Stream& s, Tensor out, int64_t k, const MatmulArgs& args);

/// cuBLASLt.
LT_CUDA_KERNEL(matmul, Tensor out, Tensor a, Tensor b, const MatmulArgs& args)

/// oneDNN, of bf16: for AMX.
void matmul_onednn(Tensor out, Tensor a, Tensor b, const MatmulArgs& args);

/// How bf16 products are computed on this CPU. `widen`: operands are widened to f32 as they are packed and
/// multiplied there, with exact products; for CPUs whose bf16 instructions are slower than that, or missing.
/// `pairs`: packed in pairs and multiplied by AVX512_BF16's instruction. `onednn`: by AMX.
/// LTRAIN_BF16_MATMUL=widen|pairs|onednn overrides the choice.
enum class Bf16Matmul : uint8_t { widen, pairs, onednn };
Bf16Matmul bf16_matmul();
inline bool packs_pairs(DType t) { return t == DType::bf16 && bf16_matmul() == Bf16Matmul::pairs; }
/// Products of this type are packed (matmul_packed.h); f64 and oneDNN's bf16 are not.
bool packs(DType t);
/// What a packed product (m, n, k) of operands of `in` into `out` asks of each thread: pack_bytes.
std::array<int64_t, 3> packed_bytes(int64_t m, int64_t n, int64_t k, DType in, DType out);
/// The most of any number of summed rows up to `most`.
std::array<int64_t, 3> packed_bytes_of_rows(int64_t m, int64_t n, int64_t most, DType in, DType out);
/// Rows of a up to which a product with b^T reads b where it lies (matmul_few_rows_cpu).
inline constexpr int64_t kFewRows = 8;
/// f64, by cache blocks over the micro kernel.
LT_CPU_KERNEL(void matmul_f64_cpu(double* out, const double* a, const double* b, const double* bias,
                                  int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b,
                                  bool accumulate);
              void matmul_few_rows_cpu(DType in, DType out_type, void* out, const void* a, const void* b,
                                       const void* bias, int64_t m, int64_t n, int64_t k, bool accumulate);)

}  // namespace ltrain
