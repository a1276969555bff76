#include "runtime/weights/align_neurons.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/matmul/matmul.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

NeuronSimilarity::NeuronSimilarity(int64_t neurons)
    : neurons_(neurons), sums_(static_cast<size_t>(neurons * neurons)) {}

void NeuronSimilarity::add_rows(const std::vector<float>& first, const std::vector<float>& second,
                                int64_t width) {
  add(first, second, width, true);
}

void NeuronSimilarity::add_columns(const std::vector<float>& first, const std::vector<float>& second,
                                   int64_t height) {
  add(first, second, height, false);
}

void NeuronSimilarity::add(const std::vector<float>& first, const std::vector<float>& second, int64_t width,
                           bool rows) {
  const auto tensor = [](const std::vector<float>& v, int64_t height, int64_t columns) {
    return Tensor{const_cast<float*>(v.data()), DType::f32, DeviceKind::cpu, {height, columns}, nullptr};
  };
  const int64_t height = rows ? neurons_ : width, columns = rows ? width : neurons_;
  const auto stream = make_inline_stream("neurons");
  run_matmul(*stream, tensor(sums_, neurons_, neurons_), tensor(first, height, columns),
             tensor(second, height, columns),
             {.trans_a = !rows, .trans_b = rows, .accumulate = true, .bias = {}});
}

bool NeuronSimilarity::finite() const {
  return std::all_of(sums_.begin(), sums_.end(), [](float sum) { return std::isfinite(sum); });
}

std::vector<int64_t> NeuronSimilarity::best_pairs() const { return best_assignment(sums_, neurons_); }

std::vector<int64_t> best_assignment(const std::vector<float>& scores, int64_t n) {
  constexpr int64_t kNone = -1;
  constexpr double kFar = std::numeric_limits<double>::infinity();
  const auto count = static_cast<size_t>(n);
  std::vector<double> row_price(count), column_price(count), distance(count);
  std::vector<int64_t> row_of(count, kNone), column_of(count, kNone), before(count);
  std::vector<char> done(count);
  for (int64_t start = 0; start < n; ++start) {
    // The cheapest path from this row to a column without a row, by Dijkstra's algorithm over reduced costs.
    std::fill(distance.begin(), distance.end(), kFar);
    std::fill(done.begin(), done.end(), 0);
    std::vector<int64_t> reached;
    int64_t row = start, last = kNone;
    double length = 0;
    while (true) {
      const float* const score = scores.data() + row * n;
      int64_t nearest = kNone;
      for (int64_t j = 0; j < n; ++j) {
        const auto c = static_cast<size_t>(j);
        if (done[c]) continue;
        const double through =
            length - static_cast<double>(score[j]) - row_price[static_cast<size_t>(row)] - column_price[c];
        if (through < distance[c]) distance[c] = through, before[c] = row;
        if (nearest == kNone || distance[c] < distance[static_cast<size_t>(nearest)]) nearest = j;
      }
      length = distance[static_cast<size_t>(nearest)];
      last = nearest;
      if (row_of[static_cast<size_t>(last)] == kNone) break;
      done[static_cast<size_t>(last)] = 1, reached.push_back(last);
      row = row_of[static_cast<size_t>(last)];
    }
    row_price[static_cast<size_t>(start)] += length;
    for (int64_t j : reached) {
      const auto c = static_cast<size_t>(j);
      row_price[static_cast<size_t>(row_of[c])] += length - distance[c];
      column_price[c] -= length - distance[c];
    }
    // Each row on the path takes the column after it.
    for (int64_t j = last; j != kNone;) {
      const int64_t r = before[static_cast<size_t>(j)];
      row_of[static_cast<size_t>(j)] = r;
      std::swap(column_of[static_cast<size_t>(r)], j);
    }
  }
  return column_of;
}

}  // namespace ltrain
