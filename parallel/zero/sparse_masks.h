// 2:4 sparsity: from a step on, matrices have two zeros in each four neighbours along the input dim. The
// zeros are the mask; none is stored. A weight with zero moments and a zero gradient stays zero under every
// rule that updates one element at a time. A checkpoint is therefore enough to resume.
#pragma once
#include <vector>

#include "parallel/zero/element_updates.h"

namespace ltrain {

class SparseMasks {
 public:
  /// Chooses the matrices. Throws Error (usage) if one cannot be sparse, or if its optimizer moves zeros.
  SparseMasks(const StoreContext& context, const ParameterLayout& layout, const StepRules& rules,
              const ElementUpdates& updates, const WeightAverage& average, bool offloaded);

  /// Called after weights were initialized or loaded: choose() must run again.
  void forget() { chosen_ = false; }
  /// Chooses zeros, once, before the update of a step; the gather of the update brings them to other ranks.
  /// After a resume it finds the same zeros and changes nothing.
  void choose();
  /// Masks gradients after the step of the choice, before their squares are summed. A plan is of such steps.
  void mask_gradients();

 private:
  template <class F>
  void each(F f);

  StoreContext c_;
  const ParameterLayout& layout_;
  const StepRules& rules_;
  const ElementUpdates& updates_;
  const WeightAverage& average_;
  std::vector<bool> sparse_;  // indexed by parameter
  bool chosen_ = false;
};

}  // namespace ltrain
