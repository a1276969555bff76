// What an optimizer is: it declares the states that it keeps, and updates elements or whole tensors. One file
// an optimizer in this folder.
//
// Most look at one element at a time: they override element_states and update_elements, and run under every
// stage of ZeRO, with states offloaded or of 16 bits, on sparse matrices, without knowing of them. Others
// need numbers of a whole tensor or of all ranks, and make a TensorUpdate, which may ask for sums over ranks.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/optimizer/adamw_args.h"
#include "kernels/tensor/stream.h"
#include "parallel/optim/parameter_rule.h"

namespace ltrain {

class UpdateContext;

/// Consecutive elements of a bucket, all of the same length. Types of 16 bits are widened before an update
/// sees them, so that master, grad and states are of one type, f32 or f64.
struct Elements {
  Tensor master;               ///< the weights
  Tensor low;                  ///< a copy of them in a 16-bit type, which the update writes; or undefined
  Tensor grad;                 ///< summed over ranks, and not yet multiplied by AdamwArgs::grad_scale
  std::vector<Tensor> states;  ///< as element_states names them; coded ones: both codes, and scales
};

/// Elements up to `end` from where the run before it ends: a parameter, or several that are updated alike.
struct ElementRun {
  int64_t end = 0;
  bool decay = true;  ///< false leaves the weight decay out (norms, biases)
  AdamwArgs args;     ///< of this step, with the parameters' own learning rate and weight decay
};

/// Elements of one place, and how they are updated.
struct ElementPart {
  Elements elements;
  std::vector<ElementRun> runs;
};

/// `n` of the elements, from `at` on.
Elements part_of(const Elements& e, int64_t at, int64_t n);

/// f(elements of the run, run), for kernels that take one setting.
template <class F>
void each_run(const Elements& e, const std::vector<ElementRun>& runs, F f) {
  int64_t at = 0;
  for (const ElementRun& run : runs) {
    f(part_of(e, at, run.end - at), run);
    at = run.end;
  }
}

/// Steps of a run are of one kind or of two, which differ in what they compute and send.
struct StepKinds {
  const char* other = "";    ///< what the second kind is: "warm-up"; empty where there is one kind
  int64_t usual_step = 1;    ///< one of the first kind, counted as updates are, from 1
  int64_t other_step = 0;    ///< of the second
  int64_t first_others = 0;  ///< so many first steps are of the second kind,
  int64_t every = 0;         ///< or the first and every N-th after it
  bool is_other(int64_t step) const { return step <= first_others || (every > 0 && (step - 1) % every == 0); }
  int64_t others(int64_t steps) const;  ///< of the first so many steps
};

/// A forward and backward over the step's micro-batches, for what an optimizer estimates by it.
enum class EstimatePass : uint8_t {
  none,
  moved_weights,   ///< with other weights than the step's
  sampled_labels,  ///< with labels that the model draws from its own logits
};

/// A state of a whole tensor, which every rank has: Adafactor's rows and columns.
struct WholeState {
  int id = 0;  ///< a parameter of the tensor
  std::string_view name;
  Tensor tensor;
};

/// The part of an optimizer that sees more than one element at a time. One for each rank that has parameters
/// of it, with the memory that it needs beside the states of elements.
class TensorUpdate {
 public:
  virtual ~TensorUpdate() = default;
  /// Of all parameters with the optimizer, in steps whose elements are not updated one by one.
  virtual void update() = 0;
  /// States begin with zero again.
  virtual void clear() {}
  /// What checkpoints keep of it.
  virtual std::vector<WholeState> states() const { return {}; }
  /// Where Optimizer::sums_gradients is false: adds to `total` (1) f64 what stands for the squares of the
  /// gradient that a bucket would have, of this rank's own gradients of all of it, (n).
  virtual void add_own_squares(const Tensor& own, int ranks, const Tensor& total) {}
  /// Around the pass of Optimizer::estimate. With moved_weights: puts other values in the place of the
  /// weights; then keeps its gradients and puts the weights back, bit for bit. `labels`: whose mean loss the
  /// gradients are of, `loss_scale` times.
  virtual void begin_estimate() {}
  virtual void end_estimate(double labels, double loss_scale) {}
};

/// Stateless. Functions of the settings are asked by recipes and plans, too, which have no parameters.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // ---- declarations ----
  /// The states of every element, by the names that checkpoints have for them.
  virtual std::vector<std::string_view> element_states(const ParameterRule& rule) const = 0;
  /// Those of whole tensors.
  virtual std::vector<std::string_view> tensor_states(const ParameterRule& rule) const { return {}; }
  /// Updates look at one element at a time, and may be of any elements at a time: states may be offloaded or
  /// of 16 bits.
  virtual bool by_element() const { return true; }
  /// True where update_elements() takes moments and gradients of bf16 beside masters of f32 as they are; else
  /// they are widened by windows first.
  virtual bool takes_halves() const { return false; }
  /// States are codes of 8 bits with a scale for each block (CodedMoments, two states of an element): a
  /// bucket's parameters have the same settings, and are updated at once.
  virtual bool coded_states() const { return false; }
  /// update() reads sums over whole tensors (TensorSums).
  virtual bool needs_tensor_sums() const { return false; }
  /// Name of a tensor in a rank's memory that has as many elements as a bucket has states of, with the type
  /// of gradients; empty: none. Checkpoints do not keep it.
  virtual std::string_view element_scratch(const OptimizerSettings& o) const { return {}; }
  /// "" or why zeros do not stay zeros where gradients and states are zero, and what would work.
  virtual std::string_view moves_zeros(const OptimizerHyperparameters& o) const { return {}; }
  /// Ranks average their moments in a compressed all-reduce, in the place of gradients, after a warm-up.
  virtual bool averages_moments() const { return false; }

  // ---- choices ----
  /// false: such a parameter has AdamW. `named`: a group with a kind of its own matches it.
  virtual bool takes(const RuleTarget& target, bool named) const { return true; }
  /// Completes the rule of a parameter that it takes.
  virtual void adjust(ParameterRule& rule, const RuleTarget& target, const OptimizerSettings& o) const {}
  virtual StepKinds step_kinds(const OptimizerSettings& o) const { return {}; }
  /// Gradients of step `step`, from 1, are summed over ranks.
  virtual bool sums_gradients(const OptimizerSettings& o, int64_t step) const { return true; }
  /// The pass that the step has before its own.
  virtual EstimatePass estimate(const OptimizerSettings& o, int64_t step) const { return EstimatePass::none; }
  /// In step `step` update_elements is called, bucket by bucket; else TensorUpdate::update.
  virtual bool updates_elements(const OptimizerSettings& o, int64_t step) const { return true; }

  // ---- updates ----
  /// `runs`: not empty, the last one ends with the elements.
  virtual void update_elements(Stream& s, const Elements& e, const std::vector<ElementRun>& runs,
                               const OptimizerSettings& o) const {}
  /// Of several places: what is launched once, where the kernel can.
  virtual void update_parts(Stream& s, const std::vector<ElementPart>& parts,
                            const OptimizerSettings& o) const {
    for (const ElementPart& p : parts) update_elements(s, p.elements, p.runs, o);
  }
  /// Null where updates_elements is always true. Allocates from the context's memory.
  virtual std::unique_ptr<TensorUpdate> make_tensor_update(UpdateContext& context) const { return nullptr; }
};

/// `still` has one that keeps and updates nothing.
const Optimizer& optimizer_of(UpdateRule r);

/// Its moments are averaged over ranks in a compressed all-reduce after a warm-up.
inline bool is_onebit(UpdateRule r) { return optimizer_of(r).averages_moments(); }
/// Of all rules that parameters may have.
StepKinds step_kinds(const OptimizerSettings& settings);
/// "adamw, adam, sgd and lion": the optimizers whose updates look at one element at a time.
std::string by_element_names();
/// Every name of a state that some optimizer keeps of elements or of whole tensors, each once.
std::vector<std::string_view> all_state_names();

/// The average of weights, which every rule keeps where there is one.
inline constexpr std::string_view kAverage = "ema";

}  // namespace ltrain
