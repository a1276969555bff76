// LAMB (arXiv:1904.00962): the length of a tensor's step follows the length of the tensor.
#include "parallel/optim/lamb_directions.h"

namespace ltrain {

void lamb_directions(UpdateContext& c, UpdateRule rule) {
  c.each_stored(rule, [&](const ParameterPart& p) {
    const Elements& e = p.elements;
    lamb_direction(c.compute(), e.master, e.states[0], e.states[1], e.grad, p.rule.decay, p.args);
  });
  c.sums().add_squares(c, rule);
}

namespace {

class LambUpdate final : public TensorUpdate {
 public:
  explicit LambUpdate(UpdateContext& c) : c_(c) {}
  void update() override {
    lamb_directions(c_, UpdateRule::lamb);
    move_along(c_, UpdateRule::lamb, [&](const ParameterPart& p) {
      return DirectionArgs{.scale = DirectionScale::trust, .lr = p.args.lr};
    });
  }

 private:
  UpdateContext& c_;
};

class Lamb final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  bool by_element() const override { return false; }
  bool needs_tensor_sums() const override { return true; }
  bool updates_elements(const OptimizerSettings&, int64_t) const override { return false; }
  std::unique_ptr<TensorUpdate> make_tensor_update(UpdateContext& c) const override {
    return std::make_unique<LambUpdate>(c);
  }
};

}  // namespace

const Optimizer& lamb_optimizer() {
  static const Lamb optimizer;
  return optimizer;
}

}  // namespace ltrain
