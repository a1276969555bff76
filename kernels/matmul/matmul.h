// Matmul.
#pragma once
#include <array>

#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

struct MatmulArgs {
  bool trans_a = false, trans_b = false;
  bool accumulate = false;  ///< out += instead of out =
  Tensor bias;              ///< (n), dtype of out, added to every row; optional
  /// Many elements of b are zero. f32 on the CPU then skips them, with the same bits for finite a but for
  /// the sign of a zero, if `a` is not transposed; other devices and types multiply as ever.
  bool sparse_b = false;
  /// The same for `a`, if only `a` is transposed and without bias: a weight gradient dy^T x with zeros in dy.
  bool sparse_a = false;
  double nonzeros = 0.5;  ///< share of nonzeros of the sparse operand: a plan prices by it
};

/// out = op(a) op(b) [+ bias] [+ out], op(x) = x or x^T. 2 m n k FLOPs. op(a): (m, k), op(b): (k, n), out:
/// (m, n). a and b share a dtype: f32, bf16, f16 or f64. out has the same dtype, or f32 for 16-bit operands.
/// Sums in f32 (f64 for f64). With Stream::tf32, f32 operands are first rounded to TF32 (to nearest even; a
/// GPU rounds in its own way). No aliases.
void matmul(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args = {});

/// Matmul on a device without checks, costs or placements, for ops that consist of matmuls.
void run_matmul(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args);

/// Handles an output without elements or a contraction of 0, which no library accepts: writes zeros, or
/// leaves `out` with `accumulate`. Returns true if it handled the call.
bool matmul_without_work(Stream& s, Tensor out, int64_t k, const MatmulArgs& args);

/// cuBLASLt.
LT_CUDA_KERNEL(matmul, Tensor out, Tensor a, Tensor b, const MatmulArgs& args)

/// oneDNN's bf16 matmul, for AMX.
void matmul_onednn(Tensor out, Tensor a, Tensor b, const MatmulArgs& args);

/// Algorithm of bf16 matmuls on this CPU. `widen`: operands are widened to f32 during packing and multiplied
/// exactly in f32; for CPUs without bf16 instructions, or with slower ones. `pairs`: packed in pairs and
/// multiplied by AVX512_BF16's instruction. `onednn`: AMX. LTRAIN_BF16_MATMUL=widen|pairs|onednn overrides
/// the choice.
enum class Bf16Matmul : uint8_t { widen, pairs, onednn };
Bf16Matmul bf16_matmul();
inline bool packs_pairs(DType t) { return t == DType::bf16 && bf16_matmul() == Bf16Matmul::pairs; }
/// True if matmuls of this dtype are packed (matmul_packed.h); f64 and oneDNN's bf16 are not.
bool packs(DType t);
/// pack_bytes of each thread for a packed matmul (m, n, k) with operands of `in` and output of `out`.
std::array<int64_t, 3> packed_bytes(int64_t m, int64_t n, int64_t k, DType in, DType out);
/// Maximum of packed_bytes over contractions up to `most`.
std::array<int64_t, 3> packed_bytes_of_rows(int64_t m, int64_t n, int64_t most, DType in, DType out);
/// Most rows of a with which a matmul with b^T reads b unpacked (matmul_few_rows_cpu).
inline constexpr int64_t kFewRows = 8;
/// f64 matmul, by cache blocks over the micro kernel.
LT_CPU_KERNEL(void matmul_f64_cpu(double* out, const double* a, const double* b, const double* bias,
                                  int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b,
                                  bool accumulate);
              void matmul_few_rows_cpu(DType in, DType out_type, void* out, const void* a, const void* b,
                                       const void* bias, int64_t m, int64_t n, int64_t k, bool accumulate);)

}  // namespace ltrain
