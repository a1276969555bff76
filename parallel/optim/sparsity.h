// Which matrices are kept 2:4 sparse: chosen by the recipe, by the parameter's name and by what it is.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

struct ParameterSpec;

/// From update `at_step` (from 1) on, of each four neighbours along the input dim of the matrices whose names
/// a pattern matches two are zero.
struct SparsitySettings {
  std::vector<std::string> match;  ///< patterns as in OptimizerGroup; empty: none
  int64_t at_step = 1;
  bool on() const { return !match.empty(); }
};

/// A matrix of a linear layer: two dims, and neither a table, the projection to the vocabulary nor a router.
bool can_be_sparse(const ParameterSpec& spec);
/// Chosen by some pattern.
bool is_sparse(const SparsitySettings& settings, const ParameterSpec& spec);
/// Error (usage): fours along the input dim of a rank's part are not whole.
void require_fours(const ParameterSpec& spec);

}  // namespace ltrain
