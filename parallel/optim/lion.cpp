// Lion (arXiv:2302.06675): the step is the sign of a moment.
#include "kernels/optimizer/momentum.h"
#include "parallel/optim/optimizer.h"

namespace ltrain {
namespace {

class Lion final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override { return {"exp_avg"}; }
  void update_elements(Stream& s, const Elements& e, const std::vector<ElementRun>& runs,
                       const OptimizerSettings& o) const override {
    each_run(e, runs, [&](const Elements& part, const ElementRun& run) {
      MomentumArgs m;
      m.rule = MomentumRule::lion;
      m.lr = run.args.lr;
      m.weight_decay = run.args.weight_decay;
      m.beta1 = o.lion_beta1;
      m.beta2 = o.lion_beta2;
      m.grad_scale = run.args.grad_scale;
      momentum_update(s, part.master, part.states[0], part.grad, part.low, run.decay, m);
    });
  }
};

}  // namespace

const Optimizer& lion_optimizer() {
  static const Lion optimizer;
  return optimizer;
}

}  // namespace ltrain
