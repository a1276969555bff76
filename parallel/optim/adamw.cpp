// AdamW (arXiv:1711.05101).
#include "kernels/optimizer/adamw.h"

#include "parallel/optim/adamw_elements.h"

namespace ltrain {

void update_adamw(Stream& s, const Elements& e, const std::vector<ElementRun>& runs, bool coupled) {
  std::vector<AdamwRun> list;
  for (const ElementRun& r : runs) {
    list.push_back({r.end, r.decay, r.args});
    list.back().args.coupled = coupled;
  }
  adamw(s, e.master, e.states[0], e.states[1], e.grad, e.low, list);
}

namespace {

class Adamw final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  void update_elements(Stream& s, const Elements& e, const std::vector<ElementRun>& runs,
                       const OptimizerSettings&) const override {
    update_adamw(s, e, runs);
  }
};

}  // namespace

const Optimizer& adamw_optimizer() {
  static const Adamw optimizer;
  return optimizer;
}

}  // namespace ltrain
