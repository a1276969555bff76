// Sparse matrices, chosen from the recipe, the parameter's name and its kind.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "kernels/optimizer/sparse_pattern.h"

namespace ltrain {

struct ParameterSpec;

/// Estimator of the output gradient dy in weight gradients dy^T x. mvue: of each four neighbouring tokens of
/// a column two stay, without bias (kernels/matmul/sparse/prune_unbiased.h).
enum class GradientEstimator : uint8_t { none, mvue };
LT_ENUM_NAMES(GradientEstimator, {GradientEstimator::none, "none"}, {GradientEstimator::mvue, "mvue"});

/// From update `at_step` (from 1) on, matrices with a matching name have N numbers in each M neighbours along
/// the input dim. The others become zero once and stay zero; or, with `mask_interval`, master weights stay
/// dense, the matmuls of a step have masked weights, and masks move.
struct SparsitySettings {
  std::vector<std::string> match;  ///< patterns as in OptimizerGroup; empty: none
  int64_t at_step = 1;
  std::string pattern = "2:4";  ///< N:M
  bool transposable = false;    ///< two of each row and each column of all 4 x 4 blocks
  int64_t mask_interval = 0;    ///< updates from one choice of masks to the next; 0: zeros are chosen once
  double masked_decay = 2e-4;   ///< share of a masked weight that is added to its gradient
  double dense_tail = 0;        ///< share of the updates, the last ones, without masks
  GradientEstimator gradient_estimator = GradientEstimator::none;  ///< in updates with sparse weights
  int64_t train_steps = 0;  ///< updates of the run, from train.train_steps
  bool skip_zeros = false;  ///< matmuls skip zeros of weights (MatmulArgs::sparse_b)

  bool on() const { return !match.empty(); }
  bool moves() const { return on() && mask_interval > 0; }
  /// First update of the dense tail; without one the largest number.
  int64_t tail_begin() const;
  /// True in updates with masks that move.
  bool masks(int64_t step) const { return moves() && step >= at_step && step < tail_begin(); }
  /// True in updates whose weights have zeros.
  bool sparse_in(int64_t step) const { return moves() ? masks(step) : on() && step > at_step; }
  /// Number of such updates among the first `train_steps`.
  int64_t sparse_steps() const;
  /// True if at least half of the updates are such.
  bool mostly_sparse() const { return on() && 2 * sparse_steps() >= train_steps; }
  /// Share of the elements of a sparse matrix that stay, from the pattern.
  double kept_share() const;
  /// True in updates that begin with new masks.
  bool renews(int64_t step) const { return masks(step) && (step - at_step) % mask_interval == 0; }
};

/// Pattern of a text "N:M": 0 < N < M, M 4, 8 or 16. Nothing for another text.
std::optional<SparsePattern> parse_pattern(std::string_view text);
/// "2:4", or "2:4 transposable".
std::string pattern_text(const SparsitySettings& settings);
/// Pattern of a matrix with `cols` columns.
SparsePattern sparse_pattern(const SparsitySettings& settings, int64_t cols);

/// True if a pattern matches.
bool is_sparse(const SparsitySettings& settings, const ParameterSpec& spec);
/// Throws Error (usage) unless a rank's part has full groups along the input dim, and with transposable masks
/// full blocks of rows.
void require_groups(const SparsitySettings& settings, const ParameterSpec& spec);

}  // namespace ltrain
