// Grouped products in FP8 against the same arithmetic, written down.
#include "kernels/matmul/grouped/grouped_matmul_fp8.h"

#include <algorithm>
#include <cmath>

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

using Matrix = std::vector<std::vector<double>>;

/// FP8 rounding of a matrix, by blocks of `down` x `across`, each with its own step or the given one.
Matrix rounded_to_fp8(const Matrix& x, DType format, int64_t down, int64_t across, float step = 0) {
  Matrix out = x;
  const int64_t rows = static_cast<int64_t>(x.size()), cols = rows ? static_cast<int64_t>(x[0].size()) : 0;
  for (int64_t i = 0; i < rows; i += down)
    for (int64_t j = 0; j < cols; j += across) {
      float most = 0, own = step;
      const auto each = [&](auto&& f) {
        for (int64_t r = i; r < std::min(rows, i + down); ++r)
          for (int64_t c = j; c < std::min(cols, j + across); ++c) f(r, c);
      };
      each([&](int64_t r, int64_t c) { most = std::max(most, std::abs(static_cast<float>(x[r][c]))); });
      if (own == 0) own = fp8::step_of(most, fp8_top_exponent(format), 0);
      each([&](int64_t r, int64_t c) {
        const float scaled = static_cast<float>(x[r][c]) / own;
        out[r][c] =
            double{format == DType::f8e4m3 ? E4m3::from(E4m3::to(scaled)) : E5m2::from(E5m2::to(scaled))} *
            own;
      });
    }
  return out;
}

Matrix transposed(const Matrix& x, size_t cols) {
  Matrix out(cols, std::vector<double>(x.size()));
  for (size_t r = 0; r < x.size(); ++r)
    for (size_t c = 0; c < cols; ++c) out[c][r] = x[r][c];
  return out;
}

/// a b^T
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.size(), std::vector<double>(b.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b.size(); ++j)
      for (size_t k = 0; k < a[i].size(); ++k) out[i][j] += a[i][k] * b[j][k];
  return out;
}

template <class T>
Matrix read(const Guarded<T>& x, int64_t first, int64_t rows, int64_t cols) {
  Matrix out(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) out[r].push_back(as_double(x[(first + r) * cols + c]));
  return out;
}

void write(std::vector<double>& to, int64_t first, const Matrix& from) {
  for (const std::vector<double>& row : from)
    for (double v : row) to[first++] = v;
}

constexpr int64_t kIn = 144, kOut = 48, kMost = 520;  // a few rows belong to nobody
const GroupRows kGroups{0, 1, 300, 0, 37, 160};
constexpr float kStepX = 0x1p-6f, kStepW = 0x1p-7f, kStepDy = 0x1p-12f;

/// Memory of an operand's codes and steps.
struct Room {
  Guarded<uint8_t> codes, scratch;
  Guarded<float> steps;
  Fp8Operand operand;
  DType format;
  int64_t cols;
  Room(DType format, int64_t codes_rows, int64_t steps_count, int64_t cols, float step)
      : codes(codes_rows * cols),
        scratch(fp8_filled_rows(kMost) * cols),
        steps(steps_count),
        format(format),
        cols(cols) {
    operand.codes = tensor_of(codes, {codes_rows, cols});
    operand.codes.dtype = format;
    operand.steps = tensor_of(steps, {steps_count});
    steps[0] = step;
  }
  Tensor own_scratch() {
    Tensor t = tensor_of(scratch, {fp8_filled_rows(kMost), cols});
    t.dtype = format;
    return t;
  }
  bool intact() const { return codes.intact() && scratch.intact() && steps.intact(); }
};

template <class T>
void check_groups(bool blocks, bool codes_already, double allowed) {
  INFO(dtype_name(dtype_of<T>::value) << (blocks ? " blocks" : "") << (codes_already ? " of codes" : ""));
  using Sum = compute_t<T>;
  const int64_t groups = static_cast<int64_t>(kGroups.size());
  auto s = make_inline_stream("compute");
  auto x = random_array<T>(kMost * kIn, 1), w = random_array<T>(groups * kOut * kIn, 2),
       dy = random_array<T>(kMost * kOut, 3);
  Guarded<T> y(kMost * kOut), dx(kMost * kIn);
  Guarded<Sum> dw(groups * kOut * kIn);
  fill_random(y, 4), fill_random(dx, 5);
  for (int64_t i = 0; i < dw.size(); ++i) dw[i] = Sum(NAN);
  std::vector<double> want_y = doubles(y), want_dx = doubles(dx), want_dw(groups * kOut * kIn);
  const Tensor tx = tensor_of(x, {kMost, kIn}), tdy = tensor_of(dy, {kMost, kOut}),
               tw = tensor_of(w, {groups, 2, kOut / 2, kIn}), tdw = tensor_of(dw, {groups, 2, kOut / 2, kIn});

  const int64_t b = kFp8Block, all = int64_t{1} << 40;
  const auto step = [&](float one) { return blocks ? 0.0f : one; };
  int64_t first = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t n = kGroups[g];
    const Matrix mx = read(x, first, n, kIn), mdy = read(dy, first, n, kOut),
                 mw = read(w, g * kOut, kOut, kIn);
    const int64_t row = blocks ? 1 : all, side = blocks ? b : all;
    const auto x_of = [&](const Matrix& m) {
      return rounded_to_fp8(m, DType::f8e4m3, row, side, step(kStepX));
    };
    const auto dy_of = [&](const Matrix& m) {
      return rounded_to_fp8(m, DType::f8e5m2, row, side, step(kStepDy));
    };
    const Matrix rw = rounded_to_fp8(mw, DType::f8e4m3, side, side, step(kStepW));
    write(want_y, first * kOut, product(x_of(mx), rw));
    write(want_dx, first * kIn, product(dy_of(mdy), transposed(rw, kIn)));
    if (n > 0)
      write(want_dw, g * kOut * kIn, product(dy_of(transposed(mdy, kOut)), x_of(transposed(mx, kIn))));
    first += n;
  }

  const auto steps = [&](int64_t n) { return blocks ? n : 1; };
  const auto across = [&](int64_t k) { return (k + b - 1) / b; };
  const int64_t of_turned = fp8_transposed_rows(kMost, groups),
                blocks_turned = fp8_transposed_blocks(kMost, groups);
  Room rx(DType::f8e4m3, kMost, steps(kMost * across(kIn)), kIn, kStepX),
      rdy(DType::f8e5m2, kMost, steps(kMost * across(kOut)), kOut, kStepDy),
      rw(DType::f8e4m3, groups * kOut, steps(groups * across(kOut) * across(kIn)), kIn, kStepW),
      rwt(DType::f8e4m3, groups * kIn, steps(groups * across(kIn) * across(kOut)), kOut, kStepW),
      rxt(DType::f8e4m3, of_turned, steps(blocks_turned * kIn), kIn, kStepX),
      rdyt(DType::f8e5m2, of_turned, steps(blocks_turned * kOut), kOut, kStepDy);
  const auto rows = [&](Room& r, const Tensor& of) {
    r.operand.of = of;
    if (!blocks) return quantize(*s, r.operand.codes, of, false, r.operand.steps);
    r.operand.block_rows = 1;
    r.operand.steps = r.operand.steps.view({kMost, across(of.cols())});
    quantize_blocks(*s, r.operand.codes, r.operand.steps, of, false, 1);
  };
  const auto stack = [&](Room& r, bool turn) {
    r.operand.of = tw;
    r.operand.transposed = turn;
    r.operand.block_rows = blocks ? b : 0;
    quantize_stack(*s, r.operand, tw, turn);
  };
  const auto turn = [&](Room& r, const Tensor& of, const Room& plain) {
    r.operand.of = of;
    r.operand.transposed = true;
    r.operand.block_rows = blocks ? 1 : 0;
    quantize_transposed(*s, r.operand, codes_already ? plain.operand.codes : of,
                        blocks ? Tensor() : r.own_scratch(), kGroups);
  };
  rows(rx, tx), rows(rdy, tdy), stack(rw, false), stack(rwt, true);
  turn(rxt, tx, rx), turn(rdyt, tdy, rdy);
  grouped_matmul_fp8(*s, tensor_of(y, {kMost, kOut}), rx.operand, rw.operand, kGroups);
  grouped_matmul_fp8(*s, tensor_of(dx, {kMost, kIn}), rdy.operand, rwt.operand, kGroups);
  grouped_matmul_fp8_dw(*s, tdw, rdyt.operand, rxt.operand, kGroups, false);
  CHECK(worst_error(y, want_y) < allowed);
  CHECK(worst_error(dx, want_dx) < allowed);
  CHECK(worst_error(dw, want_dw) < allowed);
  grouped_matmul_fp8_dw(*s, tdw, rdyt.operand, rxt.operand, kGroups, true);
  for (double& v : want_dw) v *= 2;
  CHECK(worst_error(dw, want_dw) < allowed);
  CHECK((y.intact() && dx.intact() && dw.intact()));
  for (const Room* r : {&rx, &rdy, &rw, &rwt, &rxt, &rdyt}) CHECK(r->intact());
}

}  // namespace

TEST_CASE("grouped products of FP8 equal the products of the rounded numbers, by one step and by blocks") {
  for (const bool blocks : {false, true})
    for (const bool codes_already : {false, true}) {
      if (blocks && codes_already) continue;
      check_groups<double>(blocks, codes_already, 1e-12);
      check_groups<float>(blocks, codes_already, 2e-5);
      check_groups<bf16>(blocks, codes_already, 6e-3);
    }
}
