#include "models/layers/fp8.h"

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "models/layers/step.h"

namespace ltrain {

Fp8State::Fp8State(const Fp8Settings& settings, Stream& compute, Memory& memory, int64_t layers)
    : settings_(settings) {
  if (settings.recipe != Fp8Recipe::delayed) return;
  const int64_t n = layers * kFp8Linears * kFp8Roles;
  const auto table = [&](const char* name, Shape shape) {
    const Tensor t = memory.allocate(MemoryKind::optimizer, name, DType::f32, shape);
    fill_zero(compute, t);
    place_set(compute, t, kAllAxes, Placement::R());
    return t;
  };
  steps_ = table("steps of FP8", {n});
  amax_ = table("largest magnitudes", {n});
  history_ = table("history of largest magnitudes", {n, settings.history});
}

DType Fp8State::format(Fp8Role role) const {
  return role == Fp8Role::gradient && settings_.hybrid ? DType::f8e5m2 : DType::f8e4m3;
}

Tensor Fp8State::element(Tensor table, int slot, Fp8Role role) const {
  return table.flat(slot * kFp8Roles + static_cast<int>(role), {1});
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

Tensor Fp8State::current_steps(Step& step, const Fp8Source& a, const Fp8Source& b) const {
  Stream& s = step.compute;
  Tensor found = step.memory.allocate(MemoryKind::temporaries, "largest magnitudes", DType::f32, {2});
  const Tensor steps = step.memory.allocate(MemoryKind::temporaries, "steps of a product", DType::f32, {2});
  fill_zero(s, found);
  max_abs(s, found.flat(0, {1}), a.of);
  max_abs(s, found.flat(1, {1}), b.of);
  for (const auto& [group, axis] :
       {std::pair{&step.groups.tensor, Axis::tensor}, std::pair{&step.groups.context, Axis::context}}) {
    if (group->size() == 1) continue;
    place_set(s, found, axis, Placement::V());
    group->all_reduce(s, found, ReduceOp::max);
  }
  Fp8StepArgs args = step_args();
  args.period = 2;
  args.top[0] = fp8_top_exponent(format(a.role));
  args.top[1] = fp8_top_exponent(format(b.role));
  update_fp8_steps(s, steps, found, Tensor(), args);
  step.memory.release(found);
  return steps;
}

Fp8Operand Fp8State::round(Step& step, int slot, const Fp8Source& source, Tensor steps, int which) const {
  const int64_t rows = source.of.shape[source.turned ? 1 : 0], k = source.of.shape[source.turned ? 0 : 1];
  Fp8Operand out;
  out.of = source.of;
  out.turned = source.turned;
  out.codes =
      step.memory.allocate(MemoryKind::temporaries, "rounded operand", format(source.role), {rows, k});
  if (settings_.recipe == Fp8Recipe::blockwise) {
    out.block_rows = source.role == Fp8Role::weight ? kFp8Block : 1;
    out.steps =
        step.memory.allocate(MemoryKind::temporaries, "steps of blocks", DType::f32,
                             {(rows + out.block_rows - 1) / out.block_rows, (k + kFp8Block - 1) / kFp8Block});
    quantize_blocks(step.compute, out.codes, out.steps, source.of, source.turned, out.block_rows);
    return out;
  }
  const bool delayed = settings_.recipe == Fp8Recipe::delayed;
  out.steps = delayed ? element(steps_, slot, source.role) : steps.flat(which, {1});
  quantize(step.compute, out.codes, source.of, source.turned, out.steps,
           delayed && step.training ? element(amax_, slot, source.role) : Tensor());
  return out;
}

void Fp8State::multiply(Step& step, int slot, Tensor out, const Fp8Source& a, const Fp8Source& b,
                        const MatmulArgs& args) {
  Tensor steps;
  if (settings_.recipe == Fp8Recipe::tensorwise) steps = current_steps(step, a, b);
  Fp8Operand left = round(step, slot, a, steps, 0), right = round(step, slot, b, steps, 1);
  matmul_fp8(step.compute, out, left, right, args);
  for (Fp8Operand* o : {&right, &left}) {
    if (o->block_rows) step.memory.release(o->steps);
    step.memory.release(o->codes);
  }
  if (steps.defined()) step.memory.release(steps);
}

}  // namespace ltrain
