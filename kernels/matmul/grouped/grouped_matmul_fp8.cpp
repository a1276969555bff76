#include "kernels/matmul/grouped/grouped_matmul_fp8.h"

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {
namespace {

int64_t blocks_of(int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

/// Rows of a group that are transposed, and multiplied, at once.
struct TransposedRows {
  int64_t group, first, rows;  ///< rows of x
  int64_t at, filled, block;   ///< row offset in the transposed operand, padded rows, block offset
};

template <class F>
void each_transposed(const GroupRows& rows, bool blocks, F&& f) {
  TransposedRows r{};
  for (; r.group < static_cast<int64_t>(rows.size()); ++r.group) {
    r.rows = rows[static_cast<size_t>(r.group)];
    r.filled = blocks ? r.rows : fp8_filled_rows(r.rows);
    if (r.rows > 0) f(r);
    r.first += r.rows;
    r.at += r.filled;
    r.block += blocks_of(r.rows);
  }
}

Tensor codes_of(const Fp8Operand& o, const TransposedRows& r, int64_t width) {
  return o.codes.flat(r.at * width, {width, r.filled});
}

Tensor steps_of(const Fp8Operand& o, const TransposedRows& r, int64_t width) {
  return o.block_rows ? o.steps.flat(r.block * width, {width, blocks_of(r.rows)}) : o.steps;
}

/// Matrix g of a quantized stack, n rows.
Fp8Operand matrix(const Fp8Operand& w, int64_t g, int64_t n, int64_t k) {
  Fp8Operand out = w;
  out.codes = w.codes.flat(g * n * k, {n, k});
  if (w.block_rows) {
    const int64_t down = (n + w.block_rows - 1) / w.block_rows, across = blocks_of(k);
    out.steps = w.steps.flat(g * down * across, {down, across});
  }
  return out;
}

void add_quantize(Stream& s, const Fp8Operand& out, const Tensor& x, Tensor amax) {
  OpCost cost =
      op_cost("quantize", OpClass::elementwise, (out.block_rows ? 2.0 : 1.0) * x.elements(), {}, {x});
  cost.role = OpRole::operand_rounding;
  cost.dtype = x.dtype;
  cost.bytes += static_cast<double>(x.elements());
  s.meta()->add(s, cost);
  place(s, "quantize", Rule::elementwise, {out.codes}, {x});
  if (out.block_rows)
    place_max(s, "quantize", out.steps, x);
  else
    place_rounded(s, "quantize", {out.codes, out.steps, amax});
}

/// Cost of one group's matmul, for the profile; packing buffers as if all possible rows belonged to one
/// group. `a`: the operand before quantization.
void add_product(Stream& s, const char* name, const Tensor& out, const Tensor& a, const GroupRows& rows,
                 int64_t n, int64_t k, double bytes) {
  const int64_t some = total_rows(rows), most = a.shape[0];
  OpCost cost = op_cost(name, OpClass::matmul, 2.0 * some * n * k, {}, {});
  cost.dtype = DType::f8e4m3;
  cost.bytes = bytes;
  cost.m = some / static_cast<int64_t>(rows.size()), cost.n = n, cost.k = k;
  const bool gradient = out.shape.rank > 2;
  if (gradient) cost.role = OpRole::weight_gradient;
  s.meta()->add(s, cost);
  if (out.dtype == DType::f64) return;
  s.meta()->need_panels(gradient ? packed_bytes_of_rows(n, k, fp8_filled_rows(most), DType::f8e4m3, out.dtype)
                                 : packed_bytes(most, n, k, DType::f8e4m3, out.dtype));
}

}  // namespace

void quantize_stack(Stream& s, const Fp8Operand& out, Tensor w, bool turn, Tensor amax) {
  const int64_t groups = w.shape[0], k = w.cols(), n = w.elements() / groups / k;
  LT_CHECK(is_fp8(out.codes.dtype) && out.codes.elements() == w.elements(),
           "quantize_stack: expected FP8 codes of {} elements for a stack {}, got {} {}", w.elements(),
           to_string(w.shape), dtype_name(out.codes.dtype), to_string(out.codes.shape));
  if (s.meta()) return add_quantize(s, out, w, amax);
  const OpRange range(s, "quantize");
  if (!turn && !out.block_rows)
    return quantize(s, out.codes.view({groups * n, k}), w.view({groups * n, k}), false, out.steps, amax);
  for (int64_t g = 0; g < groups; ++g) {
    const Fp8Operand one = matrix(out, g, turn ? k : n, turn ? n : k);
    if (out.block_rows)
      quantize_blocks(s, one.codes, one.steps, group_matrix(w, g), turn, out.block_rows);
    else
      quantize(s, one.codes, group_matrix(w, g), turn, out.steps, amax);
  }
}

void quantize_transposed(Stream& s, const Fp8Operand& out, Tensor x, Tensor scratch, const GroupRows& rows) {
  const int64_t k = x.cols(), groups = static_cast<int64_t>(rows.size());
  const bool blocks = out.block_rows > 0;
  LT_CHECK(
      x.shape[0] >= total_rows(rows) && is_fp8(out.codes.dtype) &&
          out.codes.elements() >=
              (blocks ? total_rows(rows) : fp8_transposed_rows(total_rows(rows), groups)) * k &&
          (!blocks || out.steps.elements() >= fp8_transposed_blocks(total_rows(rows), groups) * k) &&
          (blocks || scratch.dtype == out.codes.dtype),
      "quantize_transposed: expected FP8 codes with room for {} rows of {} groups of {} columns, got x {} "
      "and codes {} {}",
      total_rows(rows), groups, k, to_string(x.shape), dtype_name(out.codes.dtype),
      to_string(out.codes.shape));
  if (s.meta()) return add_quantize(s, out, x.narrow(0, total_rows(rows)), {});
  const OpRange range(s, "quantize");
  each_transposed(rows, blocks, [&](const TransposedRows& r) {
    const Tensor own = x.narrow(r.first, r.rows);
    if (blocks)
      return quantize_blocks(s, codes_of(out, r, k), steps_of(out, r, k), own, true, out.block_rows);
    // The group's codes, padded with zeros.
    const bool rounded = is_fp8(x.dtype), whole = r.filled == r.rows;
    const Tensor codes = rounded && whole ? own : scratch.narrow(0, r.filled);
    if (!whole) fill_zero(s, scratch.narrow(r.rows, r.filled - r.rows));
    if (!rounded)
      quantize(s, codes.narrow(0, r.rows), own, false, out.steps);
    else if (!whole)
      s.copy(codes.data, own.data, own.bytes());
    turn_codes(s, codes_of(out, r, k), codes);
  });
}

void grouped_matmul_fp8(Stream& s, Tensor y, const Fp8Operand& x, const Fp8Operand& w,
                        const GroupRows& rows) {
  const int64_t groups = static_cast<int64_t>(rows.size()), n = y.cols(), k = x.codes.cols();
  LT_CHECK(w.codes.elements() == groups * n * k && y.shape[0] >= total_rows(rows) &&
               x.codes.rows() >= total_rows(rows),
           "grouped FP8 matmul: expected weights (groups, n, k) = ({}, {}, {}) and at least {} rows, got x "
           "{}, weights {}, y {}",
           groups, n, k, total_rows(rows), to_string(x.codes.shape), to_string(w.codes.shape),
           to_string(y.shape));
  const char* name = w.transposed   ? w.block_rows ? "grouped_matmul_fp8_dx_blocks" : "grouped_matmul_fp8_dx"
                     : w.block_rows ? "grouped_matmul_fp8_blocks"
                                    : "grouped_matmul_fp8";
  if (s.meta()) {
    add_product(s, name, y, x.of, rows, n, k,
                static_cast<double>(total_rows(rows) * (k + n * dtype_size(y.dtype)) + w.codes.bytes()));
    place_grouped_matmul(s, y, x.of, w.of,
                         w.transposed ? GroupedProduct::input_gradient : GroupedProduct::forward, false);
    return;
  }
  const OpRange range(s, name);
  int64_t first = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t of_group = rows[static_cast<size_t>(g)];
    if (of_group == 0) continue;
    Fp8Operand left = x;
    left.codes = x.codes.narrow(first, of_group);
    if (x.block_rows) left.steps = x.steps.narrow(first, of_group);
    matmul_fp8(s, y.narrow(first, of_group), left, matrix(w, g, n, k));
    first += of_group;
  }
}

void grouped_matmul_fp8_dw(Stream& s, Tensor dw, const Fp8Operand& dy, const Fp8Operand& x,
                           const GroupRows& rows, bool accumulate) {
  const int64_t groups = static_cast<int64_t>(rows.size()), n = dy.of.cols(), k = x.of.cols();
  LT_CHECK(
      dw.shape[0] == groups && dw.elements() == groups * n * k && dy.block_rows == x.block_rows &&
          dy.transposed && x.transposed,
      "grouped FP8 matmul for dw: expected dw (groups, n, k) = ({}, {}, {}) and transposed operands with "
      "the same blocks, got dw {}, dy {}, x {}",
      groups, n, k, to_string(dw.shape), to_string(dy.of.shape), to_string(x.of.shape));
  const char* name = x.block_rows ? "grouped_matmul_fp8_dw_blocks" : "grouped_matmul_fp8_dw";
  if (s.meta()) {
    add_product(s, name, dw, dy.of, rows, n, k,
                static_cast<double>(total_rows(rows) * (n + k) + (accumulate ? 2 : 1) * dw.bytes()));
    place_grouped_matmul(s, dw, dy.of, x.of, GroupedProduct::weight_gradient, accumulate);
    return;
  }
  const OpRange range(s, name);
  for (int64_t g = 0; g < groups; ++g)
    if (rows[static_cast<size_t>(g)] == 0 && !accumulate) fill_zero(s, group_matrix(dw, g));
  MatmulArgs args;
  args.accumulate = accumulate;
  each_transposed(rows, dy.block_rows > 0, [&](const TransposedRows& r) {
    const auto operand = [&](const Fp8Operand& of, int64_t width) {
      Fp8Operand one = of;
      one.codes = codes_of(of, r, width);
      one.steps = steps_of(of, r, width);
      return one;
    };
    matmul_fp8(s, group_matrix(dw, r.group), operand(dy, n), operand(x, k), args);
  });
}

}  // namespace ltrain
