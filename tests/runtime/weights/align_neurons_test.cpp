// Assignment of neurons, against all permutations.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <random>

#include "runtime/weights/align_neurons.h"

using namespace ltrain;

namespace {

double total(const std::vector<float>& scores, const std::vector<int64_t>& columns) {
  double sum = 0;
  for (size_t i = 0; i < columns.size(); ++i)
    sum += static_cast<double>(scores[i * columns.size() + static_cast<size_t>(columns[i])]);
  return sum;
}

}  // namespace

TEST_CASE("the assignment of a square matrix has the largest sum of all permutations") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t n = 1 + static_cast<int64_t>(random() % 7);
    std::vector<float> scores(static_cast<size_t>(n * n));
    const bool ties = trial % 3 == 0;  // few values, so that several assignments are best
    for (float& s : scores)
      s = ties ? static_cast<float>(random() % 3) : std::normal_distribution<float>()(random);
    const auto columns = best_assignment(scores, n);
    std::vector<int64_t> sorted = columns, all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    std::sort(sorted.begin(), sorted.end());
    REQUIRE(sorted == all);
    double best = total(scores, all);
    while (std::next_permutation(all.begin(), all.end())) best = std::max(best, total(scores, all));
    REQUIRE(total(scores, columns) == Approx(best).margin(1e-5));
  }
}

TEST_CASE("shuffled neurons of a thousand are found again, whatever the scale of the weights") {
  std::mt19937 random(8);
  const int64_t n = 1000, width = 24;
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<float> first(static_cast<size_t>(n * width)), second(first.size());
  for (float& v : first) v = 1e-3F * std::normal_distribution<float>()(random);
  for (int64_t i = 0; i < n; ++i)
    std::copy_n(first.begin() + i * width, width, second.begin() + order[static_cast<size_t>(i)] * width);
  NeuronSimilarity rows(n);
  rows.add_rows(first, second, width);
  CHECK(rows.best_pairs() == order);
  std::vector<float> first_columns(first.size()), second_columns(first.size());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t k = 0; k < width; ++k) {
      const auto at = static_cast<size_t>(k * n + i), from = static_cast<size_t>(i * width + k);
      first_columns[at] = first[from], second_columns[at] = second[from];
    }
  second[7] = std::numeric_limits<float>::quiet_NaN();
  NeuronSimilarity broken(n);
  broken.add_rows(first, second, width);
  CHECK((rows.finite() && !broken.finite()));
  second[7] = first[7];
  NeuronSimilarity columns(n);
  columns.add_columns(first_columns, second_columns, width);
  CHECK(columns.best_pairs() == order);
}
