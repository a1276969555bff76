// PiSSA (arXiv:2404.02948): adapters that begin with the largest singular vectors of the weights, which keep
// the rest.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/piece_reader.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// A weight (rows, cols) and the factors that its adapter begins with.
struct PissaFactors {
  int64_t rows = 0, cols = 0, rank = 0;
  double scale = 1;
  std::vector<float> w;
  std::vector<double> a, b;  ///< (rank, cols), (rows, rank)
  double residual = 0;       ///< SingularVectors::residual

  /// Element of W - scale B A.
  double rest(int64_t row, int64_t col) const;
};
/// A and B are sqrt(value / scale) times the vectors of the largest singular values of w, rounded to `dtype`,
/// that of adapters. Throws Error (usage) if the rank of the adapter is above that of the matrix.
PissaFactors pissa_factors(const std::string& name, const LoraConfig& lora, const Shape& shape,
                           std::vector<float> w, DType dtype);

/// Weights of this rank that begin without their largest singular vectors; empty without lora.init: pissa.
std::set<std::string> pissa_weights(const Recipe& recipe, const ParameterStore& parameters);

/// Fills those weights and their factors from W of `reader`: B A scale is the best approximation of its rank,
/// and the weight W - B A scale. Every rank reads full matrices and computes the same bits.
void load_pissa(const Recipe& recipe, ParameterStore& parameters, PieceReader& reader,
                std::vector<std::string>& notes);

}  // namespace ltrain
