// SGD with momentum, like PyTorch's torch.optim.SGD.
#include "kernels/optimizer/momentum.h"
#include "parallel/optim/optimizer.h"

namespace ltrain {
namespace {

class Sgd final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"momentum_buffer"};
  }
  void update_elements(Stream& s, const Elements& e, const std::vector<ElementRun>& runs,
                       const OptimizerSettings& o) const override {
    each_run(e, runs, [&](const Elements& part, const ElementRun& run) {
      MomentumArgs m;
      m.rule = MomentumRule::sgd;
      m.lr = run.args.lr;
      m.weight_decay = run.args.weight_decay;
      m.momentum = o.sgd_momentum;
      m.nesterov = o.sgd_nesterov;
      m.grad_scale = run.args.grad_scale;
      momentum_update(s, part.master, part.states[0], part.grad, part.low, run.decay, m);
    });
  }
};

}  // namespace

const Optimizer& sgd_optimizer() {
  static const Sgd optimizer;
  return optimizer;
}

}  // namespace ltrain
