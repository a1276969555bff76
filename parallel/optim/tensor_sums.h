// Sums over whole tensors, for optimizers that scale a tensor's step by numbers of the tensor.
//
// Every rank adds what it owns, the same elements under every stage of ZeRO, so that all stages give the same
// bits.
#pragma once
#include <vector>

#include "kernels/optimizer/two_step_update.h"
#include "parallel/optim/update_context.h"

namespace ltrain {

/// A tensor of the model: parameters of one name, of which this rank may have several parts.
struct WholeTensor {
  int first = 0;  ///< a parameter of that name
  const ParameterSpec* spec = nullptr;
  const ParameterRule* rule = nullptr;
};

class TensorSums {
 public:
  /// Of parameters in the order of their ids, those whose optimizers need sums.
  void add(int id, const ParameterSpec& spec, const ParameterRule& rule);
  void allocate(UpdateContext& c);

  const std::vector<WholeTensor>& tensors() const { return tensors_; }
  /// The place in tensors() of a parameter's tensor.
  int index(int id) const { return of_parameter_[static_cast<size_t>(id)]; }
  /// (tensors, 2) f64, and that of one tensor.
  const Tensor& all() const { return sums_; }
  Tensor of(int id) const { return sums_.flat(2 * index(id), {2}); }

  /// Squares of each tensor with the rule, and of its direction, which has the place of its gradient: summed.
  void add_squares(UpdateContext& c, UpdateRule rule);

 private:
  std::vector<WholeTensor> tensors_;
  std::vector<int> of_parameter_;
  Tensor sums_;
};

/// A tensor that every rank has all of, for the length of the run; undefined where n is 0.
Tensor allocate_whole(UpdateContext& c, std::string_view name, DType type, int64_t n);
/// On meta: as one of several parts, which add to a sum.
Tensor own_part(UpdateContext& c, const Tensor& t);
/// Groups whose ranks have parts of this pipeline rank's parameters.
std::vector<const Group*> groups_of_parts(const Groups& groups);
/// Sums over all of them.
void reduce_sums(UpdateContext& c, Tensor sums);

/// The second half of an update in two: every parameter with the rule moves along its direction, which has
/// the place of its gradient.
void move_along(UpdateContext& c, UpdateRule rule,
                const std::function<DirectionArgs(const ParameterPart&)>& args_of);

}  // namespace ltrain
