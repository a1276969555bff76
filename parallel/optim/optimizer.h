// Interface of optimizers: declaration of states, and updates of elements or full tensors. Each optimizer has
// a file in this folder.
//
// Most optimizers update one element at a time: they override element_states and update_elements. They then
// work under every ZeRO stage, with offloaded or 16-bit states, and on sparse matrices, without code for it.
// Others need norms of a full tensor or data of all ranks; they make a TensorUpdate, which can ask for sums
// over ranks.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/optimizer/optimizer_step.h"
#include "kernels/tensor/stream.h"
#include "parallel/optim/parameter_rule.h"

namespace ltrain {

class UpdateContext;

/// Consecutive elements of a bucket; all tensors have the same length. 16-bit types are widened before an
/// update, so that master, grad and states share a dtype, f32 or f64.
struct Elements {
  Tensor master;               ///< the weights
  Tensor low;                  ///< 16-bit copy that the update writes, or undefined
  Tensor grad;                 ///< summed over ranks, before multiplication by OptimizerStep::grad_scale
  std::vector<Tensor> states;  ///< in the order of element_states; coded moments: both codes, and scales
};

/// Elements from the end of the previous run up to `end`: one parameter, or several with the same settings.
struct ElementRun {
  int64_t end = 0;
  bool decay = true;   ///< false skips the weight decay (norms, biases)
  OptimizerStep args;  ///< arguments of this step, with the parameter's own learning rate and weight decay
};

/// A range of elements, and the settings of its update.
struct ElementPart {
  Elements elements;
  std::vector<ElementRun> runs;
};

/// `n` of the elements, from `at` on.
Elements part_of(const Elements& e, int64_t at, int64_t n);

/// Calls f(elements of the run, run), for kernels with one setting.
template <class F>
void each_run(const Elements& e, const std::vector<ElementRun>& runs, F f) {
  int64_t at = 0;
  for (const ElementRun& run : runs) {
    f(part_of(e, at, run.end - at), run);
    at = run.end;
  }
}

/// Steps of a run are of one kind or several, which differ in computation and communication.
struct StepKinds {
  const char* other = "";  ///< name of the other kinds: "warm-up"; empty if there is one kind
  int64_t usual_step = 1;  ///< a step of the first kind, counted like updates, from 1
  /// A step of each other kind, in the order in which they follow each other.
  std::vector<int64_t> other_steps = {};
  int64_t first_others = 0;  ///< number of first steps that are of the one other kind,
  int64_t every = 0;         ///< or: each of other_steps, at most this, is followed by one every N steps
  std::vector<int64_t> all() const;  ///< a step of each kind, the usual one first
  /// 0: usual; else the number in other_steps, from 1.
  size_t kind_of(int64_t step) const;
  int64_t count(size_t kind, int64_t steps) const;  ///< number of another kind, from 1, in the first `steps`
  int64_t others(int64_t steps) const;              ///< number of all other kinds
};

/// A forward and backward over the step's micro-batches for an optimizer's estimate.
enum class EstimatePass : uint8_t {
  none,
  moved_weights,   ///< with moved weights
  sampled_labels,  ///< with labels sampled from the model's logits
};

/// A state of a full tensor, present on every rank: Adafactor's rows and columns.
struct WholeState {
  int id = 0;  ///< one parameter of the tensor
  std::string_view name;
  Tensor tensor;
};

/// Part of an optimizer that handles more than one element at a time. Each rank with parameters of the
/// optimizer has one, with its memory beside the states of elements.
class TensorUpdate {
 public:
  virtual ~TensorUpdate() = default;
  /// Updates all parameters of the optimizer, in steps without update_elements().
  virtual void update() = 0;
  /// Resets states to zero.
  virtual void clear() {}
  /// States for checkpoints.
  virtual std::vector<WholeState> states() const { return {}; }
  /// If Optimizer::sums_gradients is false: adds to `total` (1) f64 an estimate of the squares of the
  /// bucket's gradient, from this rank's own gradients of the full bucket, (n).
  virtual void add_own_squares(const Tensor& own, int ranks, const Tensor& total) {}
  /// Called around the pass of Optimizer::estimate. With moved_weights: begin moves the weights; end keeps
  /// the gradients and restores the weights, bit for bit. `labels`: number of labels of the mean loss of the
  /// gradients, which are scaled by `loss_scale`.
  virtual void begin_estimate() {}
  virtual void end_estimate(double labels, double loss_scale) {}
};

/// Stateless. Recipes and plans, which have no parameters, also call the functions of the settings.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // ---- declarations ----
  /// States of every element, by their names in checkpoints.
  virtual std::vector<std::string_view> element_states(const ParameterRule& rule) const = 0;
  /// States of full tensors.
  virtual std::vector<std::string_view> tensor_states(const ParameterRule& rule) const { return {}; }
  /// True if updates handle one element at a time, and any elements at a time: states may be offloaded or
  /// 16-bit.
  virtual bool by_element() const { return true; }
  /// True if update_elements() accepts bf16 moments and gradients with f32 masters; otherwise they are first
  /// widened, in windows.
  virtual bool takes_halves() const { return false; }
  /// True if states are 8-bit codes with a scale for each block (CodedMoments, two states for each element):
  /// a bucket's parameters have the same settings, and are updated at once.
  virtual bool coded_states() const { return false; }
  /// True if update() reads sums over full tensors (TensorSums).
  virtual bool needs_tensor_sums() const { return false; }
  /// Name of a scratch tensor with one element for each of a bucket's states, in the dtype of gradients;
  /// empty: none. Not in checkpoints.
  virtual std::string_view element_scratch(const OptimizerSettings& o) const { return {}; }
  /// Empty, or the reason why zeros with zero gradients and states do not stay zero, and a setting that
  /// works.
  virtual std::string_view moves_zeros(const OptimizerHyperparameters& o) const { return {}; }
  /// True if ranks average their moments in a compressed all-reduce after a warm-up, instead of gradients.
  virtual bool averages_moments() const { return false; }

  // ---- choices ----
  /// False: such a parameter uses AdamW. `named`: a group with its own kind matches it.
  virtual bool takes(const RuleTarget& target, bool named) const { return true; }
  /// Completes the rule of a parameter of this optimizer.
  virtual void adjust(ParameterRule& rule, const RuleTarget& target, const OptimizerSettings& o) const {}
  virtual StepKinds step_kinds(const OptimizerSettings& o) const { return {}; }
  /// True if gradients of step `step`, from 1, are summed over ranks.
  virtual bool sums_gradients(const OptimizerSettings& o, int64_t step) const { return true; }
  /// Extra pass before the step's own.
  virtual EstimatePass estimate(const OptimizerSettings& o, int64_t step) const { return EstimatePass::none; }
  /// True if step `step` calls update_elements, bucket by bucket; otherwise TensorUpdate::update.
  virtual bool updates_elements(const OptimizerSettings& o, int64_t step) const { return true; }

  // ---- updates ----
  /// `runs`: not empty, the last one ends with the elements.
  virtual void update_elements(Stream& s, const Elements& e, const std::vector<ElementRun>& runs,
                               const OptimizerSettings& o) const {}
  /// Updates several ranges, in one launch if the kernel can.
  virtual void update_parts(Stream& s, const std::vector<ElementPart>& parts,
                            const OptimizerSettings& o) const {
    for (const ElementPart& p : parts) update_elements(s, p.elements, p.runs, o);
  }
  /// Null if updates_elements is always true. Allocates from the context's memory.
  virtual std::unique_ptr<TensorUpdate> make_tensor_update(UpdateContext& context) const { return nullptr; }
};

/// `frozen` has an optimizer without states or updates.
const Optimizer& optimizer_of(UpdateRule r);

/// True if its moments are averaged over ranks in a compressed all-reduce after a warm-up.
inline bool is_onebit(UpdateRule r) { return optimizer_of(r).averages_moments(); }
/// Union over all rules that parameters may have.
StepKinds step_kinds(const OptimizerSettings& settings);
/// "adamw, adam, sgd and lion": the optimizers that update one element at a time.
std::string by_element_names();
/// All names of states of elements or full tensors, without duplicates.
std::vector<std::string_view> all_state_names();

/// Name of the EMA, a state of every rule if it is on.
inline constexpr std::string_view kAverage = "ema";
/// Name of the momentum of the outer optimizer of DiLoCo in checkpoints.
inline constexpr std::string_view kOuterMomentum = "outer_momentum";
/// Master weights of matrices with masks that move, whose own names have the masked weights.
inline constexpr std::string_view kDenseWeights = "dense_weights";
/// Streaming DiLoCo: weights of a site, and the sum over sites of a change on its way.
inline constexpr std::string_view kLocalWeights = "local_weights", kOuterChange = "outer_change";

}  // namespace ltrain
