#include "kernels/elementwise/copy_rectangles.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("parts are copied, converted, and nothing else is touched") {
  const std::vector<CopyRectangle> parts = {{3, 5, 1, 2, 0, 0}, {2, 1, 6, 8, 3, 4}, {0, 3, 0, 0, 0, 0}};
  each_float([&]<class F>() {
    each_float([&]<class T>() {
      const auto in = random_array<F>(8 * 9, 1);
      for (const auto& [isa, copy] : BOTH_ISAS(copy_rectangles_cpu))
        for (int threads : {1, 2})
          with_threads(threads, [&] {
            auto out = random_array<T>(5 * 6, 2);
            std::vector<double> want = doubles(out);
            for (const CopyRectangle& p : parts)
              for (int64_t r = 0; r < p.rows; ++r)
                for (int64_t c = 0; c < p.cols; ++c)
                  want[(p.to_row + r) * 6 + p.to_col + c] = as_double(
                      T(static_cast<compute_t<T>>(as_double(in[(p.from_row + r) * 9 + p.from_col + c]))));
            copy(dtype_of<T>::value, dtype_of<F>::value, out.data(), in.data(), 6, 9, parts.data(),
                 static_cast<int64_t>(parts.size()));
            CHECK(out.intact());
            CHECK(doubles(out) == want);
          });
    });
  });
}

TEST_CASE("a part outside of its matrices is refused") {
  auto stream = make_inline_stream("test");
  Guarded<float> in(6), out(6);
  const Tensor i = tensor_of(in, {2, 3}), o = tensor_of(out, {3, 2});
  copy_rectangles(*stream, o, i, {{2, 2, 0, 1, 1, 0}});
  for (const CopyRectangle& p :
       {CopyRectangle{2, 2, 1, 1, 0, 0}, CopyRectangle{2, 2, 0, 2, 0, 0}, CopyRectangle{2, 2, 0, 0, 2, 0},
        CopyRectangle{2, 2, 0, 0, 0, 1}, CopyRectangle{1, 1, -1, 0, 0, 0}})
    CHECK_THROWS_AS(copy_rectangles(*stream, o, i, {p}), Error);
}
