// Negative controls: what the kernel tests look with does see.
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("guards see one element written before or behind an array") {
  Guarded<float> a(10), b(10);
  CHECK(a.intact());
  a.data()[10] = 0;
  CHECK_FALSE(a.intact());
  b.data()[-1] = 0;
  CHECK_FALSE(b.intact());
  Guarded<bf16> c(3);
  c[0] = c[1] = bf16(1.0f);
  CHECK_FALSE(c.all_written());
}

TEST_CASE("the comparison sees one element that is off by twice the tolerance, and a NaN") {
  each_float([]<class T>() {
    Guarded<T> a = random_array<T>(1000, 1);
    std::vector<double> want = doubles(a);
    CHECK(worst_error(a, want) == 0);
    double mean = 0;
    for (double w : want) mean += std::abs(w) / 1000;
    want[500] += 2 * tolerance<T>() * (std::abs(want[500]) + mean);
    CHECK(worst_error(a, want) > tolerance<T>());
    want = doubles(a);
    a[3] = T(NAN);
    CHECK(worst_error(a, want) == INFINITY);
  });
}
