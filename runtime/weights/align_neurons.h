// Alignment of the neurons of two feed-forwards before their weights are averaged: the order of neurons is
// arbitrary, and a mean of unrelated neurons computes neither function.
#pragma once
#include <cstdint>
#include <vector>

namespace ltrain {

/// Sums of products of the neurons of two feed-forwards, (n, n): element (i, j) is that of neuron i of the
/// first and neuron j of the second over all matrices that were added.
class NeuronSimilarity {
 public:
  explicit NeuronSimilarity(int64_t neurons);
  /// Adds matrices with a row for each neuron, (n, width).
  void add_rows(const std::vector<float>& first, const std::vector<float>& second, int64_t width);
  /// Adds matrices with a column for each neuron, (height, n).
  void add_columns(const std::vector<float>& first, const std::vector<float>& second, int64_t height);
  bool finite() const;  ///< true if all sums are
  /// For each neuron of the first feed-forward, that of the second: the pairs with the largest sum. Requires
  /// finite sums.
  std::vector<int64_t> best_pairs() const;

 private:
  void add(const std::vector<float>& first, const std::vector<float>& second, int64_t width, bool rows);
  int64_t neurons_;
  std::vector<float> sums_;
};

/// Column of each row of a square matrix (n, n) of finite numbers, each column once, with the largest sum of
/// elements (linear assignment by shortest augmenting paths: Jonker and Volgenant, doi:10.1007/BF02278710).
/// O(n^3) at most.
std::vector<int64_t> best_assignment(const std::vector<float>& scores, int64_t n);

}  // namespace ltrain
