// Products of groups of rows against one product a group.
#include "kernels/matmul/grouped/grouped_matmul.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("grouped products equal one product a group, groups of none and of one row included") {
  const GroupRows rows{0, 1, 300, 0, 37};
  constexpr int64_t kAll = 340, kIn = 24, kOut = 17, kGroups = 5;  // two rows belong to nobody
  auto stream = make_inline_stream("compute");
  each_float([&]<class T>() {
    auto x = random_array<T>(kAll * kIn, 1), w = random_array<T>(kGroups * kOut * kIn, 2),
         dy = random_array<T>(kAll * kOut, 3);
    Guarded<T> y(kAll * kOut), dx(kAll * kIn);
    Guarded<compute_t<T>> dw(kGroups * kOut * kIn);
    std::vector<double> want_y(kAll * kOut), want_dx(kAll * kIn), want_dw(kGroups * kOut * kIn);
    fill_random(y, 4), fill_random(dx, 5);
    want_y = doubles(y), want_dx = doubles(dx);
    int64_t row = 0;
    for (int64_t g = 0; g < kGroups; ++g)
      for (int64_t n = 0; n < rows[g]; ++n, ++row) {
        for (int64_t k = 0; k < kIn; ++k) want_dx[row * kIn + k] = 0;
        for (int64_t o = 0; o < kOut; ++o) {
          double sum = 0;
          for (int64_t k = 0; k < kIn; ++k) {
            const int64_t at = (g * kOut + o) * kIn + k;
            sum += as_double(x[row * kIn + k]) * as_double(w[at]);
            want_dx[row * kIn + k] += as_double(dy[row * kOut + o]) * as_double(w[at]);
            want_dw[at] += as_double(dy[row * kOut + o]) * as_double(x[row * kIn + k]);
          }
          want_y[row * kOut + o] = sum;
        }
      }
    const Tensor tw = tensor_of(w, {kGroups, kOut, kIn}), tx = tensor_of(x, {kAll, kIn}),
                 tdy = tensor_of(dy, {kAll, kOut});
    grouped_matmul(*stream, tensor_of(y, {kAll, kOut}), tx, tw, rows);
    grouped_matmul_dx(*stream, tensor_of(dx, {kAll, kIn}), tdy, tw, rows);
    const Tensor tdw = tensor_of(dw, {kGroups, kOut, kIn});
    grouped_matmul_dw(*stream, tdw, tdy, tx, rows, false);
    CHECK(worst_error(dw, want_dw) < tolerance<T>());
    grouped_matmul_dw(*stream, tdw, tdy, tx, rows, true);
    for (double& v : want_dw) v *= 2;
    CHECK(worst_error(y, want_y) < tolerance<T>());
    CHECK(worst_error(dx, want_dx) < tolerance<T>());
    CHECK(worst_error(dw, want_dw) < tolerance<T>());
    CHECK((y.intact() && dx.intact() && dw.intact()));
  });
}
