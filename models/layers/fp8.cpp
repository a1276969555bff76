#include "models/layers/fp8.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "models/layers/step.h"
#include "parallel/optim/parameter_rule.h"

namespace ltrain {

bool keeps_type(const Fp8Settings& settings, std::string_view weight) {
  return std::any_of(settings.keep.begin(), settings.keep.end(),
                     [&](const std::string& pattern) { return name_matches(pattern, weight); });
}

Fp8State::Fp8State(const Fp8Settings& settings, Stream& compute, Memory& memory, int64_t slots)
    : settings_(settings) {
  if (settings.recipe != Fp8Recipe::delayed) return;
  const int64_t n = slots * kFp8Roles;
  const auto table = [&](const char* name, Shape shape) {
    const Tensor t = memory.allocate(MemoryKind::optimizer, name, DType::f32, shape);
    fill_zero(compute, t);
    place_set(compute, t, kAllAxes, Placement::R());
    return t;
  };
  steps_ = table("steps of FP8", {n, kFp8StepStride});
  amax_ = table("largest magnitudes", {n});
  history_ = table("history of largest magnitudes", {n, settings.history});
}

DType Fp8State::format(Fp8Role role) const {
  return role == Fp8Role::gradient && settings_.hybrid ? DType::f8e5m2 : DType::f8e4m3;
}

Tensor Fp8State::element(Tensor table, int slot, Fp8Role role) const {
  const int64_t stride = table.elements() / table.shape[0];
  return table.flat((slot * kFp8Roles + static_cast<int>(role)) * stride, {1});
}

Fp8StepArgs Fp8State::step_args() const {
  Fp8StepArgs args;
  args.margin = static_cast<int>(settings_.margin);
  args.most_recent = settings_.most_recent;
  args.period = kFp8Roles;
  for (int i = 0; i < kFp8Roles; ++i) args.top[i] = fp8_top_exponent(format(static_cast<Fp8Role>(i)));
  return args;
}

void Fp8State::begin_step(Stream& compute) {
  if (!history_.defined()) return;
  Fp8StepArgs args = step_args();
  args.record = false;
  update_fp8_steps(compute, steps_, amax_, history_, args);
  place_set(compute, steps_, kAllAxes, Placement::R());
}

void Fp8State::finish_step(Stream& compute, const Group& world) {
  if (!history_.defined()) return;
  place_set(compute, amax_, kAllAxes, Placement::V());  // a rank has slots that others lack
  world.all_reduce(compute, amax_, ReduceOp::max);
  update_fp8_steps(compute, steps_, amax_, history_, step_args());
  place_require(compute, "the steps of the next step", steps_, Placement::R());
}

Fp8State::KeptWeight& Fp8State::weight_slot(int slot) {
  if (kept_.size() <= static_cast<size_t>(slot)) kept_.resize(static_cast<size_t>(slot) + 1);
  return kept_[static_cast<size_t>(slot)];
}

void Fp8State::allocate_codes(Stream& compute, Memory& memory, MemoryKind kind, const Fp8Weight& w,
                              bool both) {
  KeptWeight& k = weight_slot(w.slot);
  k.operand[0] = operand(memory, kind, Fp8Role::weight, w.rows, w.cols, w.matrices);
  if (both) k.operand[1] = operand(memory, kind, Fp8Role::weight, w.cols, w.rows, w.matrices);
  if (settings_.recipe != Fp8Recipe::tensorwise) return;
  k.step = memory.allocate(kind, "step of a weight", DType::f32, {1});
  place_set(compute, k.step, kAllAxes, Placement::R());
}

void Fp8State::keep_weights(Stream& compute, Memory& memory, const std::vector<Fp8Weight>& weights) {
  for (const Fp8Weight& w : weights)
    allocate_codes(compute, memory, MemoryKind::fp8_weights, w, /*both=*/true);
}

void Fp8State::forget_weights() {
  for (KeptWeight& k : kept_) k.forget();
}

void Fp8State::hold_weight(Step& step, const Fp8Weight& weight) {
  KeptWeight& k = weight_slot(weight.slot);
  k.held = true;
  k.temporary = !k.operand[0].codes.defined();
  if (k.temporary)
    allocate_codes(step.compute, step.memory, MemoryKind::temporaries, weight, /*both=*/step.training);
  if (k.temporary || !step.training) k.forget();  // in evaluation, codes may be older than the weights
}

void Fp8State::release_weight(Step& step, int slot) {
  KeptWeight& k = weight_slot(slot);
  LT_CHECK(k.held, "slot {}: expected a held weight to release, got none", slot);
  if (!step.training) k.forget();
  k.held = false;
  if (!k.temporary) return;
  if (k.step.defined()) step.memory.release(k.step);
  for (Fp8Operand& o : k.operand)
    if (o.codes.defined()) release(step, o);
  k = {};
}

void Fp8State::expect(Stream& compute, int slot, Fp8Role role, double amax) {
  if (history_.defined()) fill_value(compute, element(history_, slot, role), amax);
}

Fp8State::KeptWeight* Fp8State::kept(const Step& step, int slot, const Fp8Source& source) {
  const auto at = static_cast<size_t>(slot);
  if (source.role != Fp8Role::weight || source.copied || at >= kept_.size()) return nullptr;
  KeptWeight& k = kept_[at];
  return k.operand[0].codes.defined() && (step.training || k.held) ? &k : nullptr;
}

Tensor Fp8State::current_steps(Step& step, std::initializer_list<const Fp8Source*> sources) const {
  Stream& s = step.compute;
  const auto n = static_cast<int64_t>(sources.size());
  Tensor found = step.memory.allocate(MemoryKind::temporaries, "largest magnitudes", DType::f32, {n});
  const Tensor steps =
      step.memory.allocate(MemoryKind::temporaries, "steps of a product", DType::f32, {n, kFp8StepStride});
  fill_zero(s, found);
  Fp8StepArgs args = step_args();
  args.period = 0;
  for (const Fp8Source* source : sources) {
    if (source->of.elements() > 0) max_abs(s, found.flat(args.period, {1}), source->of);
    args.top[args.period++] = fp8_top_exponent(format(source->role));
  }
  for (const auto& [group, axis] :
       {std::pair{&step.groups.tensor, Axis::tensor}, std::pair{&step.groups.context, Axis::context}}) {
    if (group->size() == 1) continue;
    place_set(s, found, axis, Placement::V());
    group->all_reduce(s, found, ReduceOp::max);
  }
  update_fp8_steps(s, steps, found, Tensor(), args);
  step.memory.release(found);
  return steps;
}

Tensor Fp8State::current_steps(Step& step, const Fp8Source& a, const Fp8Source& b, KeptWeight* kept) const {
  if (settings_.recipe != Fp8Recipe::tensorwise) return {};
  const Tensor steps = kept && kept->has_step ? current_steps(step, {&a}) : current_steps(step, {&a, &b});
  if (kept && !kept->has_step) cast(step.compute, kept->step, steps.flat(kFp8StepStride, {1}));
  if (kept) kept->has_step = true;
  return steps;
}

Fp8Operand Fp8State::operand(Memory& memory, MemoryKind kind, Fp8Role role, int64_t rows, int64_t k,
                             int64_t matrices) const {
  Fp8Operand out;
  out.codes = memory.allocate(kind, "rounded operand", format(role), {matrices * rows, k});
  if (settings_.recipe == Fp8Recipe::blockwise) {
    out.block_rows = role == Fp8Role::weight ? kFp8Block : 1;
    const int64_t down = (rows + out.block_rows - 1) / out.block_rows;
    out.steps = memory.allocate(kind, "steps of blocks", DType::f32,
                                {matrices * down, (k + kFp8Block - 1) / kFp8Block});
  }
  return out;
}

/// `current`: quantization step with tensorwise scaling. With `note`, delayed scaling notes the magnitude.
void Fp8State::round(Step& step, int slot, const Fp8Source& source, Tensor current, Fp8Operand& out,
                     bool note) const {
  out.of = source.of;
  out.transposed = source.transposed;
  const bool stack = source.of.shape.rank > 2, delayed = settings_.recipe == Fp8Recipe::delayed;
  Tensor amax;
  if (delayed && note && step.training && !source.copied) amax = element(amax_, slot, source.role);
  if (settings_.recipe != Fp8Recipe::blockwise)
    out.steps = delayed ? element(steps_, slot, source.role) : current;
  if (stack) return quantize_stack(step.compute, out, source.of, source.transposed, amax);
  if (settings_.recipe == Fp8Recipe::blockwise)
    return quantize_blocks(step.compute, out.codes, out.steps, source.of, source.transposed, out.block_rows);
  if (is_fp8(source.of.dtype)) return turn_codes(step.compute, out.codes, source.of);
  quantize(step.compute, out.codes, source.of, source.transposed, out.steps, amax);
}

void Fp8State::expect_both(int slot, Tensor dy) {
  if (settings_.recipe != Fp8Recipe::delayed) return;
  LT_CHECK(both_.slot < 0,
           "expected one announced gradient at a time, got slot {} while slot {} has not used its own", slot,
           both_.slot);
  both_ = {slot, dy, {}};
}

Fp8Operand Fp8State::temporary(Step& step, int slot, const Fp8Source& source, Tensor current) {
  Fp8Operand out;
  if (as_it_is(source)) {
    out.codes = out.of = source.of;
    out.transposed = source.transposed;
    out.steps = element(steps_, slot, source.role);
    return out;
  }
  const bool both = both_.slot == slot && source.role == Fp8Role::gradient &&
                    both_.of.data == source.of.data && both_.of.record == source.of.record;
  if (both && source.transposed) {
    LT_CHECK(both_.transposed.codes.defined(), "slot {}: expected codes of the transposed gradient, got none",
             slot);
    return std::exchange(both_, {}).transposed;
  }
  const int64_t matrices = source.of.shape.rank > 2 ? source.of.shape[0] : 1, cols = source.of.cols(),
                rows = source.of.elements() / matrices / cols;
  out = operand(step.memory, MemoryKind::temporaries, source.role, source.transposed ? cols : rows,
                source.transposed ? rows : cols, matrices);
  if (both) {
    out.of = both_.transposed.of = source.of;
    out.steps = both_.transposed.steps = element(steps_, slot, source.role);
    both_.transposed.codes =
        step.memory.allocate(MemoryKind::temporaries, "rounded operand", format(source.role), {cols, rows});
    both_.transposed.transposed = true;
    quantize_both(step.compute, out.codes, both_.transposed.codes, source.of, out.steps,
                  step.training ? element(amax_, slot, source.role) : Tensor());
    return out;
  }
  round(step, slot, source, current, out);
  return out;
}

Fp8Operand Fp8State::rounded_weight(Step& step, int slot, const Fp8Source& source, KeptWeight& kept) const {
  Fp8Operand& out = kept.operand[source.transposed];
  if (!kept.rounded[source.transposed])
    round(step, slot, source, kept.step, out, /*note=*/!kept.rounded[!source.transposed]);
  kept.rounded[source.transposed] = true;
  out.of = source.of;
  return out;
}

void Fp8State::multiply(Step& step, int slot, Tensor out, const Fp8Source& a, const Fp8Source& b,
                        const MatmulArgs& args) {
  KeptWeight* kept = this->kept(step, slot, b);
  Tensor current = current_steps(step, a, b, kept);
  const auto current_of = [&](int64_t i) {
    return current.defined() ? current.flat(i * kFp8StepStride, {1}) : current;
  };
  Fp8Operand left = temporary(step, slot, a, current_of(0));
  Fp8Operand right = kept ? rounded_weight(step, slot, b, *kept) : temporary(step, slot, b, current_of(1));
  matmul_fp8(step.compute, out, left, right, args);
  if (!kept && !as_it_is(b)) release(step, right);
  if (!as_it_is(a)) release(step, left);
  if (current.defined()) step.memory.release(current);
}

void Fp8State::multiply_linear(Step& step, int slot, Tensor out, Tensor a, Tensor b, const MatmulArgs& args,
                               bool transposed_input) {
  // x W^T, dy W, dy^T x
  const Fp8Role left = args.trans_b ? Fp8Role::input : Fp8Role::gradient;
  const Fp8Role right = args.trans_a ? Fp8Role::input : Fp8Role::weight;
  MatmulArgs plain = args;
  plain.trans_a = plain.trans_b = false;
  const Fp8Source source{.of = b,
                         .transposed = !args.trans_b,
                         .role = right,
                         .is_transposed = args.trans_a && transposed_input && is_fp8(b.dtype)};
  multiply(step, slot, out, {a, args.trans_a, left}, source, plain);
}

void Fp8State::release(Step& step, Fp8Operand& o) {
  if (o.block_rows) step.memory.release(o.steps);
  step.memory.release(o.codes);
}

bool Fp8State::knows_steps(const Step& step, int slot) const {
  return slot >= 0 && settings_.recipe == Fp8Recipe::delayed && step.groups.one_d();
}

Tensor Fp8State::input(Step& step, std::string_view name, Shape shape) const {
  return step.memory.allocate(step.keeps() ? MemoryKind::activations : MemoryKind::temporaries, name,
                              format(Fp8Role::input), shape);
}

RoundedOutput Fp8State::kept_input(Step& step, int slot, std::string_view name, Shape shape) const {
  RoundedOutput out =
      output(step, slot,
             step.memory.allocate(MemoryKind::temporaries, "rounded operand", format(Fp8Role::input), shape));
  out.transposed = input(step, name, {shape[1], shape[0]});
  return out;
}

RoundedOutput Fp8State::gradient(Step& step, int slot, Shape shape) {
  RoundedOutput out;
  const auto room = [&](Shape of) {
    return step.memory.allocate(MemoryKind::temporaries, "rounded operand", format(Fp8Role::gradient), of);
  };
  out.codes = room(shape);
  out.transposed = room({shape[1], shape[0]});
  out.step = element(steps_, slot, Fp8Role::gradient);
  if (step.training) out.amax = element(amax_, slot, Fp8Role::gradient);
  expect_both(slot, out.codes);
  both_.transposed.codes = out.transposed, both_.transposed.steps = out.step;
  both_.transposed.of = out.codes, both_.transposed.transposed = true;
  return out;
}

RoundedOutput Fp8State::output(const Step& step, int slot, Tensor codes) const {
  return {codes, element(steps_, slot, Fp8Role::input),
          step.training ? element(amax_, slot, Fp8Role::input) : Tensor()};
}

}  // namespace ltrain
