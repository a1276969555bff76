// AdamW with one byte for each moment (arXiv:2110.02861).
#include "kernels/optimizer/adamw_8bit.h"
#include "parallel/optim/optimizer.h"

namespace ltrain {
namespace {

class Adamw8bit final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  bool by_element() const override { return false; }
  bool coded_states() const override { return true; }
  std::string_view moves_zeros(const OptimizerHyperparameters&) const override {
    return "adamw8bit has moments as codes of blocks, of which single ones are not zeroed";
  }
  bool takes(const RuleTarget& t, bool) const override { return t.matrix; }
  void update_elements(Stream& s, const Elements& e, const std::vector<ElementRun>& runs,
                       const OptimizerSettings& o) const override {
    update_parts(s, {{e, runs}}, o);
  }
  void update_parts(Stream& s, const std::vector<ElementPart>& parts,
                    const OptimizerSettings&) const override {
    std::vector<CodedPart> list;
    for (const auto& [e, runs] : parts) {
      LT_CHECK(runs.size() == 1, "8-bit AdamW: expected one setting for a bucket, got {}", runs.size());
      list.push_back(
          {e.master, {e.states[0], e.states[1], e.states[2]}, e.grad, e.low, runs[0].decay, runs[0].args});
    }
    adamw_8bit(s, list);
  }
};

}  // namespace

const Optimizer& adamw8bit_optimizer() {
  static const Adamw8bit optimizer;
  return optimizer;
}

}  // namespace ltrain
