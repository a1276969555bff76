// 2:4 sparse matrices of a recipe, and their check in a checkpoint.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Sparse matrices by name, with their full shapes. Throws Error (usage) if a pattern matches none.
std::map<std::string, Shape> sparse_matrices(const Recipe& recipe);

/// Describes the first group of four of a full matrix (row-major doubles) with more than two nonzero values
/// by row and column; "": none.
std::string dense_four(const std::vector<double>& values, const Shape& shape);

/// Checks that each selected matrix in a checkpoint is 2:4 sparse, if its recipe requests sparsity and its
/// step is past the selection. Throws Error (storage) with the name of a matrix that is not. Returns the
/// number of matrices checked. Does not check hashes.
int check_2_4(const std::string& checkpoint);

}  // namespace ltrain
