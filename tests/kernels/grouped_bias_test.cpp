#include "kernels/matmul/grouped/grouped_bias.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

Tensor tensor(auto& array, Shape shape, DType t) {
  Tensor made;
  made.data = const_cast<void*>(static_cast<const void*>(array.data()));
  made.shape = shape;
  made.dtype = t;
  return made;
}

}  // namespace

TEST_CASE("biases of groups are added to their rows, and their gradients are sums over them") {
  const auto s = make_inline_stream("test");
  const GroupRows groups{3, 0, 70, 1};
  constexpr int64_t kRows = 80, kCols = 6;  // more rows than the groups have
  each_float([&]<class T>() {
    using A = compute_t<T>;
    const auto before = random_array<T>(kRows * kCols, 1), bias = random_array<T>(4 * kCols, 2);
    const auto old = random_array<A>(4 * kCols, 3);
    std::vector<double> want = doubles(before), sums(4 * kCols), more = doubles(old);
    int64_t row = 0;
    for (int64_t g = 0; g < 4; ++g)
      for (int64_t end = row + groups[g]; row < end; ++row)
        for (int64_t c = 0; c < kCols; ++c) {
          sums[g * kCols + c] += want[row * kCols + c];
          want[row * kCols + c] += as_double(bias[g * kCols + c]);
        }
    for (size_t i = 0; i < more.size(); ++i) more[i] += sums[i];
    const DType t = dtype_of<T>::value, wide = dtype_of<A>::value;
    Guarded<T> y = before;
    grouped_add_bias(*s, tensor(y, {kRows, kCols}, t), tensor(bias, {4, 2, kCols / 2}, t), groups);
    CHECK(y.intact());
    CHECK(worst_error(y, want) < tolerance<T>());
    Guarded<A> written(4 * kCols), added = old;
    grouped_sum_rows(*s, tensor(written, {4, kCols}, wide), tensor(before, {kRows, kCols}, t), groups, false);
    grouped_sum_rows(*s, tensor(added, {4, kCols}, wide), tensor(before, {kRows, kCols}, t), groups, true);
    CHECK((written.intact() && added.intact()));
    CHECK(worst_error(written, sums) < tolerance<A>());
    CHECK(worst_error(added, more) < tolerance<A>());
  });
}

TEST_CASE("factors of groups scale their rows, and gradients of magnitudes are sums over them") {
  const auto s = make_inline_stream("test");
  const GroupRows groups{3, 0, 70, 1};
  constexpr int64_t kRows = 80, kCols = 6;  // more rows than the groups have
  each_float([&]<class T>() {
    using A = compute_t<T>;
    const auto x = random_array<T>(kRows * kCols, 1), b = random_array<T>(kRows * kCols, 2);
    const auto factors = random_array<A>(4 * kCols * 2, 3), old = random_array<A>(4 * kCols, 4);
    std::vector<double> want = doubles(x), sums(4 * kCols), more = doubles(old);
    int64_t row = 0;
    for (int64_t g = 0; g < 4; ++g)
      for (int64_t end = row + groups[g]; row < end; ++row)
        for (int64_t c = 0; c < kCols; ++c) {
          const int64_t i = row * kCols + c, column = g * kCols + c;
          sums[column] += want[i] * as_double(b[i]) * as_double(factors[2 * column + 1]);
          want[i] *= as_double(factors[2 * column]);
        }
    for (size_t i = 0; i < more.size(); ++i) more[i] += sums[i];
    const DType t = dtype_of<T>::value, wide = dtype_of<A>::value;
    const Shape all{kRows, kCols};
    const Tensor by = tensor(factors, {4, kCols, 2}, wide);
    Guarded<T> y = x;
    grouped_scale_columns(*s, tensor(y, all, t), tensor(y, all, t), by, groups);
    CHECK(y.intact());
    CHECK(worst_error(y, want) < tolerance<T>());
    Guarded<A> written(4 * kCols), added = old;
    for (const bool accumulate : {false, true})
      grouped_magnitude_gradient(*s, tensor(accumulate ? added : written, {4, kCols}, wide),
                                 tensor(x, all, t), tensor(b, all, t), by, groups, accumulate);
    CHECK((written.intact() && added.intact()));
    CHECK(worst_error(written, sums) < tolerance<A>());
    CHECK(worst_error(added, more) < tolerance<A>());
  });
}
