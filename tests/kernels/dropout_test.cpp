#include "kernels/elementwise/dropout.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("dropout of a part of the channels drops what dropout of all of them drops there") {
  constexpr int64_t kRows = 7, kSeq = 3;
  const std::vector<int64_t> samples{5, 11, 2};
  for (const auto& [isa, run] : BOTH_ISAS(dropout_cpu))
    for (const auto& [cols, parts] : {std::pair<int64_t, int64_t>{5, 3}, {4, 2}, {1, 7}, {33, 2}, {6, 1}}) {
      INFO(isa << " " << cols << " columns of " << parts << " parts");
      DropoutArgs d;
      d.threshold = dropout_threshold(0.4);
      d.scale = 2;
      d.seed = 3;
      d.stream = 9;
      d.sample_index = samples.data();
      d.rows = {kSeq, 0, kSeq};
      const int64_t all = cols * parts;
      std::vector<double> ones(kRows * all, 1), whole(kRows * all), part(kRows * cols);
      run(DType::f64, whole.data(), ones.data(), kRows, all, d);
      double kept = 0;
      for (double v : whole) kept += v != 0;
      if (all > 10) CHECK((kept > 0.4 * whole.size() && kept < 0.8 * whole.size()));
      d.parts = parts;
      for (d.part = 0; d.part < parts; ++d.part) {
        run(DType::f64, part.data(), ones.data(), kRows, cols, d);
        for (int64_t r = 0; r < kRows; ++r)
          for (int64_t c = 0; c < cols; ++c) CHECK(part[r * cols + c] == whole[r * all + d.part * cols + c]);
      }
    }
}
