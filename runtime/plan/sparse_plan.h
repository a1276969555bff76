// Sparse matrices of a recipe, the prices of their matmuls, and their check in a checkpoint.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/plan/plan_types.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Sparse matrices by name, with their full shapes. Throws Error (usage) if a pattern matches none.
std::map<std::string, Shape> sparse_matrices(const Recipe& recipe);

/// Prices of a recipe with sparse matrices by `profile`, but for other_step_seconds. `plan`: with its ranks.
SparsePrice sparse_price(const Plan& plan, const Recipe& recipe, const MachineProfile& profile);
/// The same recipe with steps of the other kind only (SparsePrice): dense ones if most are sparse, else
/// sparse ones.
Recipe recipe_of_other_steps(const Recipe& recipe);

/// Describes the first group of a full matrix (row-major doubles) with more nonzero values than the pattern
/// has, by row and columns, or by column and rows if masks are transposable; "": none.
std::string dense_group(const std::vector<double>& values, const Shape& shape,
                        const SparsitySettings& settings);

struct SparseCheck {
  int matrices = 0;     ///< number of matrices checked
  std::string pattern;  ///< pattern_text
};

/// Checks that each selected matrix in a checkpoint is sparse, if its recipe requests sparsity and its step
/// is past the selection and before a dense tail. Throws Error (storage) with the name of a matrix that is
/// not. Does not check hashes.
SparseCheck check_sparse(const std::string& checkpoint);

}  // namespace ltrain
