// Sophia-H: once in a while the step is made twice, at weights that are moved a little along random signs,
// and as it is. What the gradients differ by estimates the diagonal of the Hessian
// (kernels/optimizer/sophia.h).
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/optimizer/sophia.h"
#include "kernels/tensor/rng.h"
#include "parallel/optim/update_context.h"

namespace ltrain {
namespace {

constexpr UpdateRule kSophiaH = UpdateRule::sophia_h;

bool has_estimate(const OptimizerSettings& o, int64_t step) { return (step - 1) % o.hessian_interval == 0; }

class SophiaUpdate final : public TensorUpdate {
 public:
  explicit SophiaUpdate(UpdateContext& c) : c_(c) {}

  void shift_values() override {
    for (int b : c_.buckets(kSophiaH)) {
      const Tensor weights = c_.weights(b);
      cast(c_.compute(), c_.scratch(b), weights);
      c_.each_part(b, UpdateContext::Extent::stored, [&](const ParameterPart& p) {
        add_signs(c_.compute(), weights.flat(p.at, {p.elements.grad.elements()}),
                  c_.settings().hessian_radius, signs_seed(), signs_stream(p), elements_of(p.spec, p.begin));
      });
    }
    publish();
  }

  void keep_shifted_gradients() override {
    for (int b : c_.buckets(kSophiaH)) {
      const Tensor kept = c_.scratch(b);
      cast(c_.compute(), c_.weights(b), kept);  // as they were, bit for bit
      cast(c_.compute(), kept, c_.stored(b).grad);
      c_.require_gradients(b, kept, "gradients of swapped weights");
    }
    publish();
  }

  void update() override {
    const OptimizerSettings& o = c_.settings();
    const bool estimated = has_estimate(o, c_.step_number());
    c_.each_updated(kSophiaH, [&](const ParameterPart& p) {
      const Elements& e = p.elements;
      const Tensor shifted = estimated ? c_.scratch(p.bucket).flat(p.at, {e.grad.elements()}) : Tensor();
      sophia(c_.compute(), e.master, e.states[0], e.states[1], e.grad, shifted, p.rule.decay,
             {p.args, o.sophia_gamma, o.hessian_radius}, signs_seed(), signs_stream(p),
             elements_of(p.spec, p.begin));
    });
  }

 private:
  uint64_t signs_seed() {
    return c_.seed() + static_cast<uint64_t>(c_.step_number()) * 0x9e3779b97f4a7c15ull;
  }
  static uint64_t signs_stream(const ParameterPart& p) { return hash_name("signs of " + p.spec.name); }
  void publish() { c_.publish_weights(kSophiaH, "swapped weights"); }

  UpdateContext& c_;
};

class Sophia final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"exp_avg", "hessian"};
  }
  bool by_element() const override { return false; }
  std::string_view element_scratch() const override { return "swapped values"; }
  std::string_view moves_zeros() const override {
    return "sophia_h takes gradients at weights that are moved, zeros as well";
  }
  StepKinds step_kinds(const OptimizerSettings& o) const override {
    if (o.hessian_interval <= 1) return {};
    return {"estimate of the Hessian", 2, 1, 0, o.hessian_interval};
  }
  bool estimates(const OptimizerSettings& o, int64_t step) const override { return has_estimate(o, step); }
  bool updates_elements(const OptimizerSettings&, int64_t) const override { return false; }
  std::unique_ptr<TensorUpdate> make_tensor_update(UpdateContext& c) const override {
    return std::make_unique<SophiaUpdate>(c);
  }
};

}  // namespace

const Optimizer& sophia_h_optimizer() {
  static const Sophia optimizer;
  return optimizer;
}

}  // namespace ltrain
