#include "kernels/elementwise/tensor_ops.h"

#include "kernels/elementwise/reduce.h"
#include "tests/kernels/op_support.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("cast converts between all float types") {
  for (int64_t n : {1, 19, 20001})
    each_float([&]<class F>() {
      const auto x = random_array<F>(n, 1, 100);
      each_float([&]<class T>() {
        for (const auto& [isa, f] : BOTH_ISAS(cast_cpu))
          for (int threads : {1, 2})
            with_threads(threads, [&] {
              Guarded<T> y(n);
              f(dtype_of<T>::value, dtype_of<F>::value, y.data(), x.data(), n);
              CHECK(y.intact());
              int64_t wrong = 0;
              for (int64_t i = 0; i < n; ++i) {
                const T want = T(static_cast<compute_t<T>>(static_cast<compute_t<F>>(x[i])));
                wrong += std::memcmp(&want, &y[i], sizeof(T)) != 0;
              }
              CHECK(wrong == 0);
            });
      });
    });
}

TEST_CASE("scale_by multiplies by the factor as the type of the tensor has it") {
  constexpr double kFactor = 48.9;  // root of a hidden size
  each_float([&]<class T>() {
    const T rounded = T(static_cast<compute_t<T>>(kFactor));
    const auto x = random_array<T>(1001, 1, 4);
    for (const auto& [isa, f] : BOTH_ISAS(scale_by_cpu)) {
      INFO(isa);
      Guarded<T> y = x;
      with_threads(2, [&] { f(dtype_of<T>::value, y.data(), 1001, kFactor); });
      CHECK(y.intact());
      int64_t wrong = 0;
      for (int64_t i = 0; i < 1001; ++i) {
        const T want = T(static_cast<compute_t<T>>(x[i]) * static_cast<compute_t<T>>(rounded));
        wrong += std::memcmp(&want, &y[i], sizeof(T)) != 0;
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("add_to, sum_rows and sum_squares equal their references") {
  for (const auto& [rows, cols] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 129}, {200, 7}, {517, 300}})
    each_float([&, rows = rows, cols = cols]<class T>() {
      using A = compute_t<T>;
      const int64_t n = rows * cols;
      const auto x = random_array<T>(n, 1), y0 = random_array<T>(n, 2);
      const auto old = random_array<A>(cols, 3);
      std::vector<double> sum = doubles(y0), total(cols), total_added = doubles(old);
      double squares = 2.5;
      for (int64_t i = 0; i < n; ++i) {
        sum[i] += as_double(x[i]);
        total[i % cols] += as_double(x[i]);
        total_added[i % cols] += as_double(x[i]);
        squares += as_double(x[i]) * as_double(x[i]);
      }
      for (const auto& [isa, f] : BOTH_ISAS(add_to_cpu)) {
        Guarded<T> y = y0;
        f(dtype_of<T>::value, y.data(), x.data(), n);
        CHECK(y.intact());
        CHECK(worst_error(y, sum) < tolerance<T>());
      }
      for (const auto& [isa, f] : BOTH_ISAS(sum_rows_cpu)) {
        std::string bits;
        for (int threads : {1, 2})
          with_threads(threads, [&] {
            Guarded<A> fresh(cols), added = old;
            f(dtype_of<T>::value, fresh.data(), x.data(), rows, cols, false);
            f(dtype_of<T>::value, added.data(), x.data(), rows, cols, true);
            CHECK(fresh.intact());
            CHECK(added.intact());
            const double allowed = sizeof(A) == 8 ? 1e-12 : 1e-4;
            CHECK(worst_error(fresh, total) < allowed);
            CHECK(worst_error(added, total_added) < allowed);
            CHECK((threads == 1 || fresh.bits() == bits));
            bits = fresh.bits();
          });
      }
      for (const auto& [isa, f] : BOTH_ISAS(sum_squares_cpu)) {
        double first = 0;
        for (int threads : {1, 2})
          with_threads(threads, [&] {
            double got = 2.5;
            f(dtype_of<T>::value, &got, x.data(), n);
            CHECK(std::abs(got - squares) < 1e-12 * squares);
            CHECK((threads == 1 || got == first));
            first = got;
          });
      }
    });
}

TEST_CASE("fill_normal is a function of the element alone") {
  each_float([&]<class T>() {
    const int64_t n = 3001;
    for (const auto& [isa, f] : BOTH_ISAS(fill_normal_cpu)) {
      Guarded<T> whole(n), part(1000);
      f(dtype_of<T>::value, whole.data(), n, 5, 6, 0, 0.0, 0.02);
      with_threads(2, [&] { f(dtype_of<T>::value, part.data(), 1000, 5, 6, 777, 0.0, 0.02); });
      CHECK(whole.intact());
      CHECK(part.intact());
      CHECK(whole.bits().substr(777 * sizeof(T), 1000 * sizeof(T)) == part.bits());
      int64_t wrong = 0;
      const double least =
          std::is_same_v<T, f16> ? 0x1p-25 : 1e-12;  // half of the step between its subnormals
      for (int64_t i = 0; i < n; ++i) {
        const double want = 0.02 * normal_value(5, 6, i);
        wrong += std::abs(as_double(whole[i]) - want) > std::abs(want) * tolerance<T>() + least;
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("the bits of initial parameters are the same on both instruction sets") {
  const auto both = BOTH_ISAS(fill_normal_cpu);
  if (both.size() < 2) {
    skip_test("the bits of both instruction sets: this CPU runs, or this build has, one");
    return;
  }
  Guarded<float> a(100000), b(100000);
  both[0].second(DType::f32, a.data(), a.size(), 1, 2, 0, 0.0, 0.02);
  both[1].second(DType::f32, b.data(), b.size(), 1, 2, 0, 0.0, 0.02);
  CHECK(a.bits() == b.bits());
}

TEST_CASE("fill_value and fill_zero write all of it and no more") {
  auto stream = make_inline_stream("compute");
  each_float([&]<class T>() {
    for (const auto& [isa, f] : BOTH_ISAS(fill_value_cpu)) {
      Guarded<T> a(33);
      f(dtype_of<T>::value, a.data(), 33, 1.5);
      CHECK(a.intact());
      CHECK(worst_error(a, std::vector<double>(33, 1.5)) == 0);
    }
    Guarded<T> a(33);
    fill_zero(*stream, tensor_of(a, {33}));
    CHECK(a.intact());
    CHECK(worst_error(a, std::vector<double>(33, 0.0)) == 0);
  });
}

namespace {

template <class T>
void check_reduce(int count, int64_t n, ReduceOp op) {
  std::vector<Guarded<T>> sources;
  std::vector<const void*> pointers;
  for (int s = 0; s < count; ++s) {
    sources.emplace_back(n);
    for (int64_t i = 0; i < n; ++i) {
      const double v = random_value(20 + s, i, 100);
      if constexpr (std::is_integral_v<T>) {
        sources.back()[i] = static_cast<T>(v);
      } else {
        sources.back()[i] = T(static_cast<compute_t<T>>(v));
      }
    }
  }
  for (auto& s : sources) pointers.push_back(s.data());
  std::vector<double> want(n);
  for (int64_t i = 0; i < n; ++i) {
    want[i] = as_double(sources[0][i]);
    for (int s = 1; s < count; ++s) {
      const double v = as_double(sources[s][i]);
      want[i] = op == ReduceOp::sum   ? want[i] + v
                : op == ReduceOp::max ? std::max(want[i], v)
                                      : std::min(want[i], v);
    }
  }
  INFO(count << " sources of " << n << " " << reduce_op_name(op));
  Guarded<T> out(n);
  reduce_ordered(out.data(), pointers.data(), count, n, dtype_of<T>::value, op);
  CHECK(out.intact());
  const double allowed = std::is_integral_v<T> ? 1e-15 : is_half_v<T> ? 4e-3 : sizeof(T) == 8 ? 1e-13 : 1e-5;
  CHECK(worst_error(out, want) < allowed);
  // `out` may be one of the sources.
  reduce_ordered(sources[count - 1].data(), pointers.data(), count, n, dtype_of<T>::value, op);
  CHECK(sources[count - 1].bits() == out.bits());
}

}  // namespace

TEST_CASE("ordered reductions of every type") {
  for (int count : {1, 2, 3, 8})
    for (int64_t n : {1, 7, 2048, 4099})
      for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
        check_reduce<float>(count, n, op);
        check_reduce<double>(count, n, op);
        check_reduce<bf16>(count, n, op);
        check_reduce<f16>(count, n, op);
        check_reduce<int32_t>(count, n, op);
        check_reduce<int64_t>(count, n, op);
      }
}

TEST_CASE("max and min keep a NaN, wherever it is") {
  for (int at : {0, 1, 2})
    for (ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
      float v[3] = {1, 2, 3}, out = 0;
      v[at] = NAN;
      const void* p[3] = {&v[0], &v[1], &v[2]};
      reduce_ordered(&out, p, 3, 1, DType::f32, op);
      CHECK(std::isnan(out));
    }
}

TEST_CASE("a bf16 sum is rounded once") {
  // 256 + 1 + 1: rounding after each addition would stay at 256; once gives 258.
  const bf16 v[3] = {bf16(256.0f), bf16(1.0f), bf16(1.0f)};
  bf16 out;
  const void* p[3] = {&v[0], &v[1], &v[2]};
  reduce_ordered(&out, p, 3, 1, DType::bf16, ReduceOp::sum);
  CHECK(static_cast<float>(out) == 258.0f);
}
