// Adam (arXiv:1412.6980), with weight decay added to the gradient.
#include "parallel/optim/adamw_elements.h"

namespace ltrain {
namespace {

class Adam final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  bool takes_halves() const override { return true; }
  void update_elements(Stream& s, const Elements& e, const std::vector<ElementRun>& runs,
                       const OptimizerSettings&) const override {
    update_adamw(s, {{e, runs}}, true);
  }
  void update_parts(Stream& s, const std::vector<ElementPart>& parts,
                    const OptimizerSettings&) const override {
    update_adamw(s, parts, true);
  }
};

}  // namespace

const Optimizer& adam_optimizer() {
  static const Adam optimizer;
  return optimizer;
}

}  // namespace ltrain
