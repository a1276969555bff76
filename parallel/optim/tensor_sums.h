// Sums over full tensors, for optimizers that scale a tensor's step by its norms.
//
// Every rank adds the elements that it owns, the same elements under every ZeRO stage, so that all stages
// give the same bits.
#pragma once
#include <vector>

#include "kernels/optimizer/two_step_update.h"
#include "parallel/optim/update_context.h"

namespace ltrain {

/// A tensor of the model: parameters with one name; this rank may have several parts.
struct WholeTensor {
  int first = 0;  ///< a parameter with that name
  const ParameterSpec* spec = nullptr;
  const ParameterRule* rule = nullptr;
};

class TensorSums {
 public:
  /// Adds a parameter with an optimizer that needs sums; called in the order of ids.
  void add(int id, const ParameterSpec& spec, const ParameterRule& rule);
  void allocate(UpdateContext& c);

  const std::vector<WholeTensor>& tensors() const { return tensors_; }
  /// Index of a parameter's tensor in tensors().
  int index(int id) const { return of_parameter_[static_cast<size_t>(id)]; }
  /// (tensors, 2) f64, and the row of one tensor.
  const Tensor& all() const { return sums_; }
  Tensor of(int id) const { return sums_.flat(2 * index(id), {2}); }

  /// Sums of squares of each tensor with the rule, and of its direction, which has replaced its gradient.
  void add_squares(UpdateContext& c, UpdateRule rule);

 private:
  std::vector<WholeTensor> tensors_;
  std::vector<int> of_parameter_;
  Tensor sums_;
};

/// A tensor that every rank has in full, for the length of the run; undefined if n is 0.
Tensor allocate_whole(UpdateContext& c, std::string_view name, DType type, int64_t n);
/// On meta: placed as a summand.
Tensor own_part(UpdateContext& c, const Tensor& t);
/// Groups with ranks that have parts of this pipeline rank's parameters.
std::vector<const Group*> groups_of_parts(const Groups& groups);
/// Sums over all of these groups.
void reduce_sums(UpdateContext& c, Tensor sums);

/// Second half of a two-step update: every parameter with the rule moves along its direction, which has
/// replaced its gradient.
void move_along(UpdateContext& c, UpdateRule rule,
                const std::function<DirectionArgs(const ParameterPart&)>& args_of);

}  // namespace ltrain
