// AdamW (arXiv:1711.05101).
#include "kernels/optimizer/adamw.h"

#include "parallel/optim/adamw_elements.h"

namespace ltrain {

void update_adamw(Stream& s, const std::vector<ElementPart>& parts, bool coupled) {
  std::vector<AdamwPart> list;
  for (const ElementPart& p : parts) {
    const Elements& e = p.elements;
    list.push_back({e.master, e.states[0], e.states[1], e.grad, e.low, {}});
    for (const ElementRun& r : p.runs) {
      list.back().runs.push_back({r.end, r.decay, r.args});
      list.back().runs.back().args.coupled = coupled;
    }
  }
  adamw(s, list);
}

namespace {

class Adamw final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  bool takes_halves() const override { return true; }
  void update_elements(Stream& s, const Elements& e, const std::vector<ElementRun>& runs,
                       const OptimizerSettings&) const override {
    update_adamw(s, {{e, runs}});
  }
  void update_parts(Stream& s, const std::vector<ElementPart>& parts,
                    const OptimizerSettings&) const override {
    update_adamw(s, parts);
  }
};

}  // namespace

const Optimizer& adamw_optimizer() {
  static const Adamw optimizer;
  return optimizer;
}

}  // namespace ltrain
