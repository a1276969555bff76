// Sophia: some steps have an extra pass before their own, with gradients for an estimate of the diagonal of
// the Hessian (kernels/optimizer/sophia.h). Hutchinson's pass runs at weights moved slightly along random
// signs; its gradients are kept until the step has its own. Gauss-Newton-Bartlett's pass runs at the weights,
// with labels sampled from the model; its gradients go into the average at once.
#include "kernels/optimizer/sophia.h"

#include "kernels/elementwise/tensor_ops.h"
#include "parallel/optim/update_context.h"

namespace ltrain {
namespace {

constexpr UpdateRule kSophia = UpdateRule::sophia;

bool moves_weights(const OptimizerHyperparameters& o) {
  return o.hessian_estimator == HessianEstimator::hutchinson;
}

EstimatePass pass_of(const OptimizerHyperparameters& o, int64_t step) {
  if ((step - 1) % o.hessian_interval != 0) return EstimatePass::none;
  return moves_weights(o) ? EstimatePass::moved_weights : EstimatePass::sampled_labels;
}

class SophiaUpdate final : public TensorUpdate {
 public:
  explicit SophiaUpdate(UpdateContext& c) : c_(c) {}

  void begin_estimate() override {
    if (!moves_weights(c_.settings())) return;
    for (int b : c_.buckets(kSophia)) {
      const Tensor weights = c_.weights(b);
      cast(c_.compute(), c_.scratch(b), weights);
      c_.each_part(b, UpdateContext::Extent::stored, [&](const ParameterPart& p) {
        add_signs(c_.compute(), weights.flat(p.at, {p.elements.grad.elements()}),
                  c_.settings().hessian_radius, signs_seed(), signs_stream(p), elements_of(p.spec, p.begin));
      });
    }
    publish();
  }

  void end_estimate(double labels, double loss_scale) override {
    if (!moves_weights(c_.settings())) {
      for (int b : c_.buckets(kSophia))
        c_.require_gradients(b, c_.stored(b).grad, "gradients of drawn labels");
      c_.each_stored(kSophia, [&](const ParameterPart& p) {
        gauss_newton_estimate(c_.compute(), p.elements.states[1], p.elements.grad, p.args.beta2,
                              labels / (loss_scale * loss_scale));
      });
      return;
    }
    for (int b : c_.buckets(kSophia)) {
      const Tensor kept = c_.scratch(b);
      cast(c_.compute(), c_.weights(b), kept);  // restores the weights, bit for bit
      cast(c_.compute(), kept, c_.stored(b).grad);
      c_.require_gradients(b, kept, "gradients of swapped weights");
    }
    publish();
  }

  void update() override {
    const OptimizerSettings& o = c_.settings();
    const bool estimated = pass_of(o, c_.step_number()) == EstimatePass::moved_weights;
    c_.each_updated(kSophia, [&](const ParameterPart& p) {
      const Elements& e = p.elements;
      if (estimated)
        hutchinson_estimate(c_.compute(), e.states[1], e.grad,
                            c_.scratch(p.bucket).flat(p.at, {e.grad.elements()}), p.args.beta2,
                            o.hessian_radius, signs_seed(), signs_stream(p), elements_of(p.spec, p.begin));
      sophia(c_.compute(), e.master, e.states[0], e.states[1], e.grad, e.low, p.rule.decay, p.args,
             o.sophia_gamma);
    });
  }

 private:
  uint64_t signs_seed() { return seed_of_step(c_.seed(), c_.step_number()); }
  static uint64_t signs_stream(const ParameterPart& p) { return hash_name("signs of " + p.spec.name); }
  void publish() { c_.publish_weights(kSophia, "swapped weights"); }

  UpdateContext& c_;
};

class Sophia final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"exp_avg", "hessian"};
  }
  bool by_element() const override { return false; }
  std::string_view element_scratch(const OptimizerSettings& o) const override {
    return moves_weights(o) ? "swapped values" : "";
  }
  std::string_view moves_zeros(const OptimizerHyperparameters& o) const override {
    if (!moves_weights(o)) return {};
    return "hessian_estimator: hutchinson takes gradients at weights that are moved, zeros as well";
  }
  StepKinds step_kinds(const OptimizerSettings& o) const override {
    if (o.hessian_interval <= 1) return {};
    return {"estimate of the Hessian", 2, {1}, 0, o.hessian_interval};
  }
  EstimatePass estimate(const OptimizerSettings& o, int64_t step) const override { return pass_of(o, step); }
  bool updates_elements(const OptimizerSettings&, int64_t) const override { return false; }
  std::unique_ptr<TensorUpdate> make_tensor_update(UpdateContext& c) const override {
    return std::make_unique<SophiaUpdate>(c);
  }
};

}  // namespace

const Optimizer& sophia_optimizer() {
  static const Sophia optimizer;
  return optimizer;
}

}  // namespace ltrain
