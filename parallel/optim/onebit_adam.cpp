// 1-bit Adam, with AdamW as its warm-up.
#include "parallel/optim/adamw_elements.h"
#include "parallel/optim/onebit.h"

namespace ltrain {
namespace {

constexpr UpdateRule kOnebitAdam = UpdateRule::onebit_adam;

class OnebitAdamUpdate final : public OnebitUpdate {
 public:
  using OnebitUpdate::OnebitUpdate;
  void update() override {
    average(kOnebitAdam, {});
    c_.each_updated(kOnebitAdam, [&](const ParameterPart& p) {
      const Elements& e = p.elements;
      onebit_adam(c_.compute(), e.master, e.states[0], e.states[1], e.grad, e.low, p.rule.decay, args(p));
    });
  }
};

class OnebitAdam final : public OnebitOptimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  bool updates_elements(const OptimizerSettings& o, int64_t step) const override {
    return sums_gradients(o, step);
  }
  void update_elements(Stream& s, const Elements& e, const std::vector<ElementRun>& runs,
                       const OptimizerSettings&) const override {
    update_adamw(s, {{e, runs}});
  }
  std::unique_ptr<TensorUpdate> make_tensor_update(UpdateContext& c) const override {
    return std::make_unique<OnebitAdamUpdate>(c);
  }
};

}  // namespace

const Optimizer& onebit_adam_optimizer() {
  static const OnebitAdam optimizer;
  return optimizer;
}

}  // namespace ltrain
