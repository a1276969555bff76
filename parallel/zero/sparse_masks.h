// Sparse matrices: from a step on, N numbers in each M neighbours along the input dim.
//
// Chosen once, the zeros of the weights are the mask; none is stored. A weight with zero moments and a zero
// gradient stays zero under every rule that updates one element at a time. A checkpoint is therefore enough
// to resume. With masks that move, master weights are dense, and the step's weights have the mask
// (kernels/optimizer/sparsify.h); gradients go to the master weights unchanged (arXiv:2102.04010).
#pragma once
#include <vector>

#include "parallel/zero/element_updates.h"

namespace ltrain {

class SparseMasks {
 public:
  /// Chooses the matrices. Throws Error (usage) if one cannot be sparse, or if its optimizer moves zeros.
  SparseMasks(const StoreContext& context, const ParameterLayout& layout, const StepRules& rules,
              Weights& weights, const ElementUpdates& updates, const WeightAverage& average, bool offloaded);

  void allocate();
  /// Called after weights were initialized or loaded: choose() and renew() must run again.
  void forget();
  /// Chooses zeros, once, before the update of a step; the gather of the update brings them to other ranks.
  /// After a resume it finds the same zeros and changes nothing.
  void choose();
  /// Masks gradients after the step of the choice, before their squares are summed. A plan is of such steps.
  void mask_gradients();
  /// True if weight gradients of this step are estimated from sparse output gradients of parameter `id`.
  bool prunes_gradient(int id) const;
  /// True if the weights of this step have the zeros of `n` parameters from `id` on, and matmuls skip them.
  bool skips_zeros(int id, int n) const;
  /// Share of the elements of a sparse matrix that are not zero in steps with zeros.
  double kept_share() const;

  // ---- masks that move ----
  /// Chooses masks of the step's weights, or removes them at the dense tail, before weights are gathered and
  /// gradients written. A step that is made again after a skipped update has the same masks.
  void renew();
  /// In a step with new masks: adds to `sums`, (2) f64, the weights that were masked and are not now, and the
  /// elements of the matrices, each on one rank.
  void add_flips(const Tensor& sums) const;
  /// Adds the decay of masked weights to their gradients, which the update multiplies by `grad_scale`.
  void decay(double grad_scale);

 private:
  /// True if the weights of this step have the zeros of parameter `id`. A plan is of such steps.
  bool masked(int id) const;
  void require_one_choice(const ParameterLayout::Parameter& p) const;
  template <class F>
  void each(F f);
  void choose_masks(bool all_kept);
  /// Returns whether the step's weights of this rank have masks; true without sparse matrices.
  bool has_masks();

  StoreContext c_;
  const ParameterLayout& layout_;
  const StepRules& rules_;
  Weights& weights_;
  const ElementUpdates& updates_;
  const WeightAverage& average_;
  std::vector<bool> sparse_;  // indexed by parameter
  bool chosen_ = false;
  Tensor flips_;          // (1) f64, of the newest masks
  int64_t renewed_ = -1;  // step of the last renew()
  int64_t counted_ = 0;   // elements of flips_; 0: the step has no new masks
};

}  // namespace ltrain
