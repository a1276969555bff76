// 1-bit LAMB. Its warm-up is LAMB, with an average of each tensor's trust ratios. After it, the trust ratio
// is this average times a factor from a second moment of the averaged gradients.
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "parallel/optim/lamb_directions.h"
#include "parallel/optim/onebit.h"

namespace ltrain {
namespace {

constexpr UpdateRule kOnebitLamb = UpdateRule::onebit_lamb;
/// A tensor's average of trust ratios, and its last factor.
constexpr std::string_view kCoefficients = "lamb_coeff";

class OnebitLambUpdate final : public OnebitUpdate {
 public:
  explicit OnebitLambUpdate(UpdateContext& c)
      : OnebitUpdate(c),
        coefficients_(allocate_whole(c, "coefficients of tensors", DType::f64,
                                     2 * static_cast<int64_t>(c.sums().tensors().size()))) {}

  void clear() override {
    if (coefficients_.defined()) fill_zero(c_.compute(), coefficients_);
  }

  std::vector<WholeState> states() const override {
    std::vector<WholeState> out;
    const std::vector<WholeTensor>& tensors = c_.sums().tensors();
    for (size_t i = 0; i < tensors.size(); ++i)
      out.push_back({tensors[i].first, kCoefficients, coefficients_.flat(2 * static_cast<int64_t>(i), {2})});
    return out;
  }

  void update() override {
    if (frozen())
      frozen_directions();
    else
      lamb_directions(c_, kOnebitLamb);
    onebit_coefficients(c_.compute(), coefficients_, c_.sums().all(), frozen(), c_.settings().lamb_limits);
    move_along(c_, kOnebitLamb, [&](const ParameterPart& p) {
      return DirectionArgs{.scale = DirectionScale::given, .lr = p.args.lr};
    });
  }

 private:
  /// Replaces gradients by directions, and writes each tensor's largest ratio of second moments to its sums.
  void frozen_directions() {
    Stream& s = c_.compute();
    const Tensor sums = c_.sums().all();
    average(kOnebitLamb, [&](const Elements& e) {
      if (first_frozen()) cast(s, e.states[2], e.states[1]);
    });
    fill_zero(s, sums);
    c_.each_stored(kOnebitLamb, [&](const ParameterPart& p) {
      const Elements& e = p.elements;
      onebit_lamb_direction(s, e.master, e.states[0], e.states[1], e.states[2], e.grad, p.rule.decay,
                            args(p));
      onebit_ratio(s, c_.sums().of(p.id).flat(0, {1}), e.states[1], e.states[2], args(p));
    });
    // Parts of a tensor on other ranks, experts included.
    for (const Group* g : groups_of_parts(c_.groups())) {
      place_set(s, sums, g->axes(), Placement::V());
      g->all_reduce(s, sums, ReduceOp::max);
    }
  }

  Tensor coefficients_;  // (tensors, 2) f64
};

class OnebitLamb final : public OnebitOptimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"exp_avg", "exp_avg_sq", "exp_avg_sq_fresh"};
  }
  std::vector<std::string_view> tensor_states(const ParameterRule&) const override { return {kCoefficients}; }
  bool needs_tensor_sums() const override { return true; }
  bool updates_elements(const OptimizerSettings&, int64_t) const override { return false; }
  std::unique_ptr<TensorUpdate> make_tensor_update(UpdateContext& c) const override {
    return std::make_unique<OnebitLambUpdate>(c);
  }
};

}  // namespace

const Optimizer& onebit_lamb_optimizer() {
  static const OnebitLamb optimizer;
  return optimizer;
}

}  // namespace ltrain
