#include "kernels/matmul/grouped_matmul_fp8.h"

#include <numeric>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {
namespace {

int64_t total(const GroupRows& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

int64_t blocks_of(int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

/// Lengths in which `rows` rows are multiplied: on a GPU all at once, on the CPU, where a product is compiled
/// for its sizes, few different ones. All but the last are multiples of `least`.
template <class F>
void each_piece(const Stream& s, int64_t rows, int64_t least, F&& f) {
  constexpr int64_t kWhole = 256;
  if (s.device() == DeviceKind::cuda) {
    if (rows > 0) f(0, rows);
    return;
  }
  int64_t at = 0;
  const auto take = [&](int64_t n) {
    if (n > 0) f(at, n);
    at += n;
  };
  take(rows / kWhole * kWhole);
  for (int64_t n = kWhole / 2; n >= least; n /= 2)
    if (rows & n) take(n);
  take(rows % least);
}

/// A run of rows of a group that is turned, and multiplied, at once.
struct TurnedRun {
  int64_t group, begin, rows;
  int64_t at, block;  ///< rows and blocks of the operand before it
};

template <class F>
void each_turned_run(const Stream& s, const GroupRows& rows, bool blocks, F&& f) {
  int64_t at = 0, block = 0;
  for (size_t g = 0; g < rows.size(); ++g) {
    const int64_t n = blocks ? rows[g] : fp8_filled_rows(rows[g]);
    each_piece(s, n, blocks ? kFp8Block : kFp8Multiple, [&](int64_t begin, int64_t some) {
      f(TurnedRun{static_cast<int64_t>(g), begin, some, at + begin, block + begin / kFp8Block});
    });
    at += n;
    block += blocks_of(rows[g]);
  }
}

Tensor codes_of(const Fp8Operand& o, const TurnedRun& r, int64_t width) {
  return o.codes.flat(r.at * width, {width, r.rows});
}

Tensor steps_of(const Fp8Operand& o, const TurnedRun& r, int64_t width) {
  return o.block_rows ? o.steps.flat(r.block * width, {width, blocks_of(r.rows)}) : o.steps;
}

/// Matrix g of a stack that was rounded, n rows.
Fp8Operand matrix(const Fp8Operand& w, int64_t g, int64_t n, int64_t k) {
  Fp8Operand out = w;
  out.codes = w.codes.flat(g * n * k, {n, k});
  if (w.block_rows) {
    const int64_t down = (n + w.block_rows - 1) / w.block_rows, across = blocks_of(k);
    out.steps = w.steps.flat(g * down * across, {down, across});
  }
  return out;
}

Tensor matrix(const Tensor& w, int64_t g) {
  const int64_t n = w.elements() / w.shape[0];
  return w.flat(g * n, {n / w.cols(), w.cols()});
}

void add_quantize(Stream& s, const Fp8Operand& out, const Tensor& x, Tensor amax) {
  OpCost cost =
      op_cost("quantize", OpClass::elementwise, (out.block_rows ? 2.0 : 1.0) * x.elements(), {}, {x});
  cost.dtype = x.dtype;
  cost.bytes += static_cast<double>(x.elements());
  s.meta()->add(s, cost);
  place(s, "quantize", Rule::elementwise, {out.codes}, {x});
  if (out.block_rows)
    place_max(s, "quantize", out.steps, x);
  else
    place_rounded(s, "quantize", {out.codes, out.steps, amax});
}

/// As one group's products, which is what a profile is asked for; panels as if all rows that can come were
/// one group's. `a`: as it was before it was rounded.
void add_product(Stream& s, const char* name, const Tensor& out, const Tensor& a, const GroupRows& rows,
                 int64_t n, int64_t k, double bytes) {
  const int64_t some = total(rows), most = a.shape[0];
  OpCost cost = op_cost(name, OpClass::matmul, 2.0 * some * n * k, {}, {});
  cost.dtype = DType::f8e4m3;
  cost.bytes = bytes;
  cost.m = some / static_cast<int64_t>(rows.size()), cost.n = n, cost.k = k;
  s.meta()->add(s, cost);
  if (out.dtype == DType::f64) return;
  const bool gradient = out.shape.rank > 2;
  s.meta()->need_panels(gradient ? packed_bytes_of_rows(n, k, fp8_filled_rows(most), out.dtype)
                                 : packed_bytes(most, n, k, out.dtype));
}

}  // namespace

void quantize_stack(Stream& s, const Fp8Operand& out, Tensor w, bool turn, Tensor amax) {
  const int64_t groups = w.shape[0], k = w.cols(), n = w.elements() / groups / k;
  LT_CHECK(is_fp8(out.codes.dtype) && out.codes.elements() == w.elements(), "stack {} rounded into {} {}",
           to_string(w.shape), dtype_name(out.codes.dtype), to_string(out.codes.shape));
  if (s.meta()) return add_quantize(s, out, w, amax);
  const OpRange range(s, "quantize");
  if (!turn && !out.block_rows)
    return quantize(s, out.codes.view({groups * n, k}), w.view({groups * n, k}), false, out.steps, amax);
  for (int64_t g = 0; g < groups; ++g) {
    const Fp8Operand one = matrix(out, g, turn ? k : n, turn ? n : k);
    if (out.block_rows)
      quantize_blocks(s, one.codes, one.steps, matrix(w, g), turn, out.block_rows);
    else
      quantize(s, one.codes, matrix(w, g), turn, out.steps, amax);
  }
}

void quantize_turned(Stream& s, const Fp8Operand& out, Tensor x, Tensor scratch, const GroupRows& rows) {
  const int64_t k = x.cols(), groups = static_cast<int64_t>(rows.size());
  const bool blocks = out.block_rows > 0;
  LT_CHECK(x.shape[0] >= total(rows) && is_fp8(out.codes.dtype) &&
               out.codes.elements() >= (blocks ? total(rows) : fp8_turned_rows(total(rows), groups)) * k &&
               (!blocks || out.steps.elements() >= fp8_turned_blocks(total(rows), groups) * k) &&
               (blocks || scratch.dtype == out.codes.dtype),
           "{} rows of {} groups turned into {}", total(rows), groups, to_string(out.codes.shape));
  if (s.meta()) return add_quantize(s, out, x.narrow(0, total(rows)), {});
  const OpRange range(s, "quantize");
  std::vector<int64_t> first(rows.size());
  std::exclusive_scan(rows.begin(), rows.end(), first.begin(), int64_t{0});
  Tensor codes;
  each_turned_run(s, rows, blocks, [&](const TurnedRun& r) {
    const int64_t n = rows[r.group], from = first[r.group];
    if (blocks)
      return quantize_blocks(s, codes_of(out, r, k), steps_of(out, r, k), x.narrow(from + r.begin, r.rows),
                             true, out.block_rows);
    if (r.begin == 0) {  // the group's, with zeros behind them
      const Tensor own = x.narrow(from, n);
      const int64_t filled = fp8_filled_rows(n);
      codes = is_fp8(x.dtype) && filled == n ? own : scratch.narrow(0, filled);
      if (filled > n) fill_zero(s, scratch.narrow(n, filled - n));
      if (!is_fp8(x.dtype))
        quantize(s, codes.narrow(0, n), own, false, out.steps);
      else if (filled > n)
        s.copy(codes.data, own.data, own.bytes());
    }
    turn_codes(s, codes_of(out, r, k), codes.narrow(r.begin, r.rows));
  });
}

void grouped_matmul_fp8(Stream& s, Tensor y, const Fp8Operand& x, const Fp8Operand& w,
                        const GroupRows& rows) {
  const int64_t groups = static_cast<int64_t>(rows.size()), n = y.cols(), k = x.codes.cols();
  LT_CHECK(w.codes.elements() == groups * n * k && y.shape[0] >= total(rows) && x.codes.rows() >= total(rows),
           "grouped matmul of {} and {} into {} by {} groups", to_string(x.codes.shape),
           to_string(w.codes.shape), to_string(y.shape), groups);
  if (s.meta()) {
    add_product(s, w.turned ? "grouped_matmul_fp8_dx" : "grouped_matmul_fp8", y, x.of, rows, n, k,
                static_cast<double>(total(rows) * (k + n * dtype_size(y.dtype)) + w.codes.bytes()));
    place_grouped_matmul(s, y, x.of, w.of,
                         w.turned ? GroupedProduct::input_gradient : GroupedProduct::forward, false);
    return;
  }
  const OpRange range(s, w.turned ? "grouped_matmul_fp8_dx" : "grouped_matmul_fp8");
  int64_t first = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t of_group = rows[static_cast<size_t>(g)];
    each_piece(s, of_group, 32, [&](int64_t at, int64_t some) {
      Fp8Operand left = x;
      left.codes = x.codes.narrow(first + at, some);
      if (x.block_rows) left.steps = x.steps.narrow(first + at, some);
      matmul_fp8(s, y.narrow(first + at, some), left, matrix(w, g, n, k));
    });
    first += of_group;
  }
}

void grouped_matmul_fp8_dw(Stream& s, Tensor dw, const Fp8Operand& dy, const Fp8Operand& x,
                           const GroupRows& rows, bool accumulate) {
  const int64_t groups = static_cast<int64_t>(rows.size()), n = dy.of.cols(), k = x.of.cols();
  LT_CHECK(dw.shape[0] == groups && dw.elements() == groups * n * k && dy.block_rows == x.block_rows &&
               dy.turned && x.turned,
           "grouped matmul of {} and {} into {}", to_string(dy.of.shape), to_string(x.of.shape),
           to_string(dw.shape));
  if (s.meta()) {
    add_product(s, "grouped_matmul_fp8_dw", dw, dy.of, rows, n, k,
                static_cast<double>(total(rows) * (n + k) + (accumulate ? 2 : 1) * dw.bytes()));
    place_grouped_matmul(s, dw, dy.of, x.of, GroupedProduct::weight_gradient, accumulate);
    return;
  }
  const OpRange range(s, "grouped_matmul_fp8_dw");
  for (int64_t g = 0; g < groups; ++g)
    if (rows[static_cast<size_t>(g)] == 0 && !accumulate) fill_zero(s, matrix(dw, g));
  each_turned_run(s, rows, dy.block_rows > 0, [&](const TurnedRun& r) {
    MatmulArgs args;
    args.accumulate = accumulate || r.begin > 0;
    const auto operand = [&](const Fp8Operand& of, int64_t width) {
      Fp8Operand one = of;
      one.codes = codes_of(of, r, width);
      one.steps = steps_of(of, r, width);
      return one;
    };
    matmul_fp8(s, matrix(dw, r.group), operand(dy, n), operand(x, k), args);
  });
}

}  // namespace ltrain
