// Grouped matmuls (grouped_matmul.h) in FP8, and the quantization of their operands. All operands are read
// along rows:
//
//   rows    codes (rows, k) of all groups, as in Fp8Operand
//   stack   codes (groups, n, k): a matrix of each group, or its transpose; no block spans two of them
//   transposed  the transposes of the groups' rows, one after the other, for weight gradients, which sum over
//           rows. Blocks begin with their group. With one step, zeros pad each group's rows to a multiple of
//           kFp8Multiple.
#pragma once
#include "kernels/matmul/grouped/grouped_matmul.h"
#include "kernels/matmul/matmul_fp8.h"

namespace ltrain {

/// FP8 matmuls on a GPU need a contraction that is a multiple of this.
inline constexpr int64_t kFp8Multiple = 16;
constexpr int64_t fp8_filled_rows(int64_t rows) {
  return (rows + kFp8Multiple - 1) / kFp8Multiple * kFp8Multiple;
}
/// Elements of a column, and blocks, for `rows` rows of `groups` groups, transposed.
constexpr int64_t fp8_transposed_rows(int64_t rows, int64_t groups) {
  return rows + groups * (kFp8Multiple - 1);
}
constexpr int64_t fp8_transposed_blocks(int64_t rows, int64_t groups) {
  return (rows + groups * (kFp8Block - 1)) / kFp8Block;
}

/// Quantizes a stack w (groups, ..., k), with the middle dims as rows: writes out.codes and, with blocks,
/// out.steps. `turn`: quantizes the transpose of each matrix. `amax`: as in quantize, with one step.
void quantize_stack(Stream& s, const Fp8Operand& out, Tensor w, bool turn, Tensor amax = {});
/// Quantizes the rows x of the groups, transposed. With one step x may be codes already, and `scratch`, codes
/// of shape (fp8_filled_rows(most rows of a group), k), is overwritten.
void quantize_transposed(Stream& s, const Fp8Operand& out, Tensor x, Tensor scratch, const GroupRows& rows);

/// y[rows of g] = x[rows of g] w_g^T: x of rows, w a stack. With w transposed it is dx = dy w_g.
void grouped_matmul_fp8(Stream& s, Tensor y, const Fp8Operand& x, const Fp8Operand& w, const GroupRows& rows);
/// grouped_matmul_dw of dy and x, both transposed.
void grouped_matmul_fp8_dw(Stream& s, Tensor dw, const Fp8Operand& dy, const Fp8Operand& x,
                           const GroupRows& rows, bool accumulate);

}  // namespace ltrain
