// Matrices of which two of each four neighbours along the input dim are zero, from a step on. No mask is
// kept: zeros are the mask. A weight whose moments and gradient are zero stays so under every rule that
// looks at one element at a time, and so what is in a checkpoint is all that there is to resume from.
#pragma once
#include <vector>

#include "parallel/zero/element_updates.h"

namespace ltrain {

class SparseMasks {
 public:
  /// Chooses the matrices. Error (usage): one of them cannot be sparse, or its optimizer moves zeros.
  SparseMasks(const StoreContext& context, const ParameterLayout& layout, const StepRules& rules,
              const ElementUpdates& updates, const WeightAverage& average, bool offloaded);

  /// The choice of zeros is to be made, or found to be made: weights were initialized or loaded.
  void forget() { chosen_ = false; }
  /// Of a step that is made: the choice, once, before the update, whose gather brings it to other ranks. In a
  /// run that goes on it finds what it would choose, and changes nothing.
  void choose();
  /// After the step of the choice, before squares of gradients are taken. A plan is of such steps.
  void mask_gradients();

 private:
  template <class F>
  void each(F f);

  StoreContext c_;
  const ParameterLayout& layout_;
  const StepRules& rules_;
  const ElementUpdates& updates_;
  const WeightAverage& average_;
  std::vector<bool> sparse_;  // by parameter
  bool chosen_ = false;
};

}  // namespace ltrain
