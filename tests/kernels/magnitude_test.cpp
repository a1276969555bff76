// Ops of DoRA against sums in double.
#include "kernels/elementwise/magnitude.h"

#include "kernels/tensor/stream.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("magnitudes: factors of rows, scaled columns and gradients are those of the formulas") {
  const int64_t rows = 5, cols = 37, tokens = 11;
  const auto s = make_inline_stream("compute");
  Guarded<double> w(random_array<double>(rows * cols, 3, 1)), v(random_array<double>(rows * cols, 5, 1)),
      change(random_array<double>(rows, 7, 1)), x(random_array<double>(tokens * rows, 9, 1)),
      dy(random_array<double>(tokens * rows, 11, 1)), squares(rows * 2), factors(rows * 2), y(tokens * rows),
      sums(rows);
  for (int64_t i = 0; i < cols; ++i) w[2 * cols + i] = v[2 * cols + i] = 0;  // a row of zeros
  change[2] = 0;
  for (int64_t i = 0; i < rows; ++i) sums[i] = 0.5;
  row_squares(*s, tensor_of(squares, {rows, 2}), tensor_of(w, {rows, cols}), tensor_of(v, {rows, cols}));
  magnitude_factors(*s, tensor_of(factors, {rows, 2}), tensor_of(squares, {rows, 2}),
                    tensor_of(change, {rows}));
  scale_columns(*s, tensor_of(y, {tokens, rows}), tensor_of(x, {tokens, rows}),
                tensor_of(factors, {rows, 2}));
  magnitude_gradient(*s, tensor_of(sums, {rows}), tensor_of(dy, {tokens, rows}), tensor_of(y, {tokens, rows}),
                     tensor_of(factors, {rows, 2}), true);
  for (int64_t row = 0; row < rows; ++row) {
    double before = 0, after = 0, sum = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double a = w[row * cols + c], b = a + v[row * cols + c];
      before += a * a, after += b * b;
    }
    const double magnitude = std::sqrt(before) + change[row];
    const double factor = row == 2 ? 0 : magnitude / std::sqrt(after), inverse = row == 2 ? 0 : 1 / magnitude;
    CHECK(std::abs(factors[2 * row] - factor) < 1e-12);
    CHECK(std::abs(factors[2 * row + 1] - inverse) < 1e-12 * (1 + std::abs(inverse)));
    for (int64_t t = 0; t < tokens; ++t) {
      CHECK(std::abs(y[t * rows + row] - factor * x[t * rows + row]) < 1e-12);
      sum += dy[t * rows + row] * y[t * rows + row];
    }
    CHECK(std::abs(sums[row] - 0.5 - inverse * sum) < 1e-11 * (1 + std::abs(inverse)));
  }
  CHECK((squares.intact() && factors.intact() && y.intact() && sums.intact()));
}

TEST_CASE("magnitudes: without a product and a change the factor is 1, exactly") {
  const int64_t rows = 3, cols = 129;
  const auto s = make_inline_stream("compute");
  Guarded<float> w(random_array<float>(rows * cols, 3, 1)), v(rows * cols), change(rows), squares(rows * 2),
      factors(rows * 2);
  for (int64_t i = 0; i < v.size(); ++i) v[i] = 0;
  for (int64_t i = 0; i < rows; ++i) change[i] = 0;
  row_squares(*s, tensor_of(squares, {rows, 2}), tensor_of(w, {rows, cols}), tensor_of(v, {rows, cols}));
  magnitude_factors(*s, tensor_of(factors, {rows, 2}), tensor_of(squares, {rows, 2}),
                    tensor_of(change, {rows}));
  for (int64_t i = 0; i < rows; ++i) CHECK(factors[2 * i] == 1);
}
