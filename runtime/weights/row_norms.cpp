#include "runtime/weights/row_norms.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace ltrain {

std::vector<double> row_norms(const ReadSlice& read, const std::string& weight, const Shape& shape,
                              int64_t first, int64_t count) {
  constexpr int64_t kElements = 4 << 20;  // read at once
  const int64_t cols = shape[-1], most = std::max<int64_t>(1, kElements / cols);
  LT_CHECK(shape.rank >= 2 && first >= 0 && (first + count) * cols <= shape.elements(),
           "{}: expected matrices of at least {} rows, got {}", weight, first + count, to_string(shape));
  std::vector<float> rows;
  std::vector<double> norms;
  norms.reserve(static_cast<size_t>(count));
  for (int64_t done = 0; done < count; done += most) {
    const int64_t n = std::min(most, count - done);
    rows.resize(static_cast<size_t>(n * cols));
    Slice slice = Slice::whole(shape);
    slice.begin = (first + done) * cols;
    slice.end = slice.begin + n * cols;
    read(weight, DType::f32, slice, rows.data());
    for (int64_t row = 0; row < n; ++row) {
      double sum = 0;
      for (int64_t c = 0; c < cols; ++c) {
        const double v = static_cast<double>(rows[static_cast<size_t>(row * cols + c)]);
        sum += v * v;
      }
      norms.push_back(std::sqrt(sum));
    }
  }
  return norms;
}

}  // namespace ltrain
