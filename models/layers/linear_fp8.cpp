// Matmuls of a linear layer, in FP8 if it has a slot.
#include "models/layers/linear.h"

namespace ltrain {

void Linear::quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int slot,
                               std::vector<Fp8Weight>& weights, bool transposed_input) {
  transposed_input_ = transposed_input;
  const auto kept = [&](int i) { return keeps_type(settings, store.spec(weight_ + i).name); };
  for (int i = 1; i < parts_; ++i)
    if (kept(i) != kept(0))
      fail(
          ExitCode::usage,
          "fp8.keep: matches {} and not {}, and they are one matrix, which is rounded as a whole; match both",
          store.spec(weight_ + (kept(0) ? 0 : i)).name, store.spec(weight_ + (kept(0) ? i : 0)).name);
  slot_ = kept(0) ? -1 : slot;
  if (slot_ < 0) return;
  Fp8Weight weight{slot, 0, store.spec(weight_).shape[1]};
  for (int i = 0; i < parts_; ++i) weight.rows += store.spec(weight_ + i).shape[0];
  weights.push_back(weight);
}

bool Linear::takes_codes(const Step& step) const {
  const bool products_only =
      lora_.empty() && step.params.trains(weight_) && (bias_ < 0 || !step.params.trains(bias_));
  return products_only && !step.deferred && step.fp8 && step.fp8->knows_steps(step, slot_);
}

void Linear::expect_both(Step& step, Tensor dy) const {
  if (is_fp8(dy.dtype)) return;  // Fp8State::gradient has announced it
  if (step.fp8 && slot_ >= 0 && step.params.trains(weight_)) step.fp8->expect_both(slot_, dy);
}

void Linear::product(Step& step, Tensor out, Tensor a, Tensor b, const MatmulArgs& args) const {
  if (!step.fp8 || slot_ < 0) {
    MatmulArgs with = args;
    with.sparse_b = !args.trans_a && step.params.skips_zeros(weight_, parts_);
    if (with.sparse_b) with.nonzeros = step.params.kept_share();
    return matmul(step.compute, out, a, b, with);
  }
  step.fp8->multiply_linear(step, slot_, out, a, b, args, transposed_input_);
}

}  // namespace ltrain
