// Matrices with 2:4 sparsity, chosen from the recipe, the parameter's name and its kind.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

struct ParameterSpec;

/// From update `at_step` (from 1) on, two of each four neighbours along the input dim are zero, in matrices
/// with a matching name.
struct SparsitySettings {
  std::vector<std::string> match;  ///< patterns as in OptimizerGroup; empty: none
  int64_t at_step = 1;
  bool on() const { return !match.empty(); }
};

/// True if a pattern matches.
bool is_sparse(const SparsitySettings& settings, const ParameterSpec& spec);
/// Throws Error (usage) unless a rank's part has full groups of four along the input dim.
void require_fours(const ParameterSpec& spec);

}  // namespace ltrain
