// Grouped products (grouped_matmul.h) in FP8, and how their operands are rounded. All are read along rows:
//
//   rows    codes (rows, k) of all groups, as Fp8Operand has them
//   stack   codes (groups, n, k): a matrix of each group, or its transpose; no block has parts of two
//   turned  the transposes of the groups' rows, one after the other: what a product of weights' gradients
//           sums over. Blocks begin with their group. Of one step each group has zeros behind its rows, up to
//           a multiple of kFp8Multiple.
#pragma once
#include "kernels/matmul/grouped_matmul.h"
#include "kernels/matmul/matmul_fp8.h"

namespace ltrain {

/// A GPU sums over so many products of FP8 at a time.
inline constexpr int64_t kFp8Multiple = 16;
constexpr int64_t fp8_filled_rows(int64_t rows) {
  return (rows + kFp8Multiple - 1) / kFp8Multiple * kFp8Multiple;
}
/// Room for `rows` rows of `groups` groups, turned: elements of a column, and blocks.
constexpr int64_t fp8_turned_rows(int64_t rows, int64_t groups) { return rows + groups * (kFp8Multiple - 1); }
constexpr int64_t fp8_turned_blocks(int64_t rows, int64_t groups) {
  return (rows + groups * (kFp8Block - 1)) / kFp8Block;
}

/// out.codes, and with blocks out.steps, of w: a stack (groups, ..., k), the dims between being rows.
/// `turn`: of the transpose of each matrix. `amax` as quantize's, with one step.
void quantize_stack(Stream& s, const Fp8Operand& out, Tensor w, bool turn, Tensor amax = {});
/// Likewise of x, turned, whose rows are the groups'. With one step x may have codes already, and `scratch`,
/// codes (fp8_filled_rows(most rows of a group), k), is written.
void quantize_turned(Stream& s, const Fp8Operand& out, Tensor x, Tensor scratch, const GroupRows& rows);

/// y[rows of g] = x[rows of g] w_g^T: x of rows, w a stack. Where w is turned it is dx = dy w_g.
void grouped_matmul_fp8(Stream& s, Tensor y, const Fp8Operand& x, const Fp8Operand& w, const GroupRows& rows);
/// grouped_matmul_dw of dy and x, both turned.
void grouped_matmul_fp8_dw(Stream& s, Tensor dw, const Fp8Operand& dy, const Fp8Operand& x,
                           const GroupRows& rows, bool accumulate);

}  // namespace ltrain
