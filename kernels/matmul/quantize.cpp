#include "kernels/matmul/quantize.h"

#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/timeline.h"

namespace ltrain {
namespace {

bool single(const Tensor& t) { return t.elements() == 1 && t.dtype == DType::f32; }

/// Requires steps that all ranks of an axis agree on: different scales would make different numbers of one
/// tensor.
void require_agreed(Stream& s, Tensor steps) {
  for (Axis a : {Axis::tensor, Axis::depth, Axis::row, Axis::column, Axis::context, Axis::pipeline})
    place_require(s, "quantize", steps, a, Placement::R());
}

/// Codes have the placement of x; if transposed, sharded in the other dim.
void place_codes(Stream& s, Tensor codes, Tensor x, bool turn) {
  place(s, "quantize", Rule::elementwise, {codes}, {x});
  if (!turn) return;
  for (int i = 0; i < kAxisCount; ++i) {
    Placement& p = codes.record->place[static_cast<Axis>(i)];
    if (p.kind == Placement::sharded) p = Placement::S(1 - p.dim);
  }
}

void check_codes(const Tensor& codes, const Tensor& x, bool turn) {
  LT_CHECK(is_fp8(codes.dtype) && x.shape.rank == 2 && codes.shape.rank == 2 &&
               codes.shape[turn ? 1 : 0] == x.shape[0] && codes.shape[turn ? 0 : 1] == x.shape[1],
           "quantize: expected FP8 codes of the shape of x {} {}{}, got {} {}", dtype_name(x.dtype),
           to_string(x.shape), turn ? "^T" : "", dtype_name(codes.dtype), to_string(codes.shape));
}

}  // namespace

void check_rounded(const RoundedOutput& out, const Shape& shape) {
  LT_CHECK(out.codes.dtype == DType::f8e4m3 && out.codes.shape == shape && single(out.step) &&
               (!out.amax.defined() || single(out.amax)),
           "quantized output: expected f8e4m3 codes {} with one f32 step and one f32 amax, got {} {}",
           to_string(shape), dtype_name(out.codes.dtype), to_string(out.codes.shape));
}

void place_rounded(Stream& s, const char* op, const RoundedOutput& out) {
  require_agreed(s, out.step);
  if (out.amax.defined()) place_max(s, op, out.amax, out.codes);
  if (out.transposed.defined()) place(s, op, Rule::elementwise, {out.transposed}, {out.codes});
}

void turn_codes(Stream& s, Tensor transposed, Tensor codes) {
  LT_CHECK(dtype_size(codes.dtype) == 1 && transposed.dtype == codes.dtype &&
               transposed.rows() == codes.cols() && transposed.cols() == codes.rows(),
           "turn_codes: expected one-byte codes and their transpose, got {} {} and {} {}",
           dtype_name(codes.dtype), to_string(codes.shape), dtype_name(transposed.dtype),
           to_string(transposed.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("turn_codes", OpClass::elementwise, 0, {transposed}, {codes}));
    place_codes(s, transposed, codes, true);
    return;
  }
  LT_LAUNCH(s, turn_codes, transposed.data, codes.data, codes.rows(), codes.cols());
}

void max_abs(Stream& s, Tensor amax, Tensor x) {
  LT_CHECK(single(amax), "max_abs: expected an amax of one f32 element, got {} {}", dtype_name(amax.dtype),
           to_string(amax.shape));
  if (s.meta()) {
    OpCost cost = op_cost("max_abs", OpClass::elementwise, 1.0 * x.elements(), {}, {x});
    cost.role = OpRole::operand_rounding;
    s.meta()->add(s, cost);
    place_max(s, "max_abs", amax, x);
    return;
  }
  LT_LAUNCH(s, max_abs, x.dtype, amax.ptr<float>(), x.data, x.elements());
}

void quantize(Stream& s, Tensor codes, Tensor x, bool turn, Tensor step, Tensor amax) {
  check_codes(codes, x, turn);
  LT_CHECK(single(step) && (!amax.defined() || single(amax)),
           "quantize: expected a step and an amax of one f32 element, got step {} {}", dtype_name(step.dtype),
           to_string(step.shape));
  if (s.meta()) {
    OpCost cost = op_cost("quantize", OpClass::elementwise, 1.0 * x.elements(), {codes}, {x});
    cost.role = OpRole::operand_rounding;
    cost.dtype = x.dtype;
    s.meta()->add(s, cost);
    require_agreed(s, step);
    place_codes(s, codes, x, turn);
    if (amax.defined()) place_max(s, "quantize", amax, x);
    return;
  }
  LT_LAUNCH(s, quantize, codes.dtype, x.dtype, codes.data, x.data, x.rows(), x.cols(), turn,
            step.ptr<float>(), amax.defined() ? amax.ptr<float>() : nullptr);
}

void quantize_both(Stream& s, Tensor codes, Tensor transposed, Tensor x, Tensor step, Tensor amax) {
  check_codes(codes, x, false);
  check_codes(transposed, x, true);
  LT_CHECK(single(step) && (!amax.defined() || single(amax)),
           "quantize_both: expected a step and an amax of one f32 element, got step {} {}",
           dtype_name(step.dtype), to_string(step.shape));
  if (s.meta()) {
    OpCost cost = op_cost("quantize", OpClass::elementwise, 1.0 * x.elements(), {codes, transposed}, {x});
    cost.role = OpRole::operand_rounding;
    cost.dtype = x.dtype;
    s.meta()->add(s, cost);
    require_agreed(s, step);
    place_codes(s, codes, x, false);
    place_codes(s, transposed, x, true);
    if (amax.defined()) place_max(s, "quantize", amax, x);
    return;
  }
  const OpRange range(s, "quantize");
  float* const most = amax.defined() ? amax.ptr<float>() : nullptr;
  if (s.device() == DeviceKind::cuda)
    return quantize_both_cuda(s, codes.dtype, x.dtype, codes.data, transposed.data, x.data, x.rows(),
                              x.cols(), step.ptr<float>(), most);
  s.launch([=] {
    LT_CPU(quantize_cpu)
    (codes.dtype, x.dtype, codes.data, x.data, x.rows(), x.cols(), false, step.ptr<float>(), most);
    LT_CPU(quantize_cpu)
    (codes.dtype, x.dtype, transposed.data, x.data, x.rows(), x.cols(), true, step.ptr<float>(), nullptr);
  });
}

void quantize_blocks(Stream& s, Tensor codes, Tensor steps, Tensor x, bool turn, int64_t block_rows) {
  check_codes(codes, x, turn);
  const int64_t r = codes.shape[0], c = codes.shape[1];
  LT_CHECK((block_rows == 1 || block_rows == kFp8Block) && steps.dtype == DType::f32 &&
               steps.shape == Shape({(r + block_rows - 1) / block_rows, (c + kFp8Block - 1) / kFp8Block}),
           "quantize_blocks: expected block_rows 1 or {} and f32 steps ({}, {}), got block_rows {} and steps "
           "{} {}",
           kFp8Block, (r + block_rows - 1) / block_rows, (c + kFp8Block - 1) / kFp8Block, block_rows,
           dtype_name(steps.dtype), to_string(steps.shape));
  if (s.meta()) {
    OpCost cost = op_cost("quantize", OpClass::elementwise, 2.0 * x.elements(), {codes}, {x});
    cost.role = OpRole::operand_rounding;
    cost.dtype = x.dtype;
    s.meta()->add(s, cost);
    place_codes(s, codes, x, turn);
    place_max(s, "quantize", steps, x);
    return;
  }
  const OpRange range(s, "quantize");
  if (s.device() == DeviceKind::cuda)
    return quantize_blocks_cuda(s, codes.dtype, x.dtype, codes.data, steps.ptr<float>(), x.data, x.rows(),
                                x.cols(), turn, block_rows);
  s.launch([=] {
    LT_CPU(quantize_blocks_cpu)
    (codes.dtype, x.dtype, codes.data, steps.ptr<float>(), x.data, x.rows(), x.cols(), turn, block_rows);
  });
}

void update_fp8_steps(Stream& s, Tensor steps, Tensor amax, Tensor history, const Fp8StepArgs& args) {
  const int64_t n = amax.elements(), length = history.defined() ? history.shape[1] : 0;
  LT_CHECK(steps.shape == Shape({n, kFp8StepStride}) && steps.dtype == DType::f32 &&
               amax.dtype == DType::f32 && args.period >= 1 && args.period <= 3 &&
               (length == 0 || history.shape == Shape({n, length})),
           "update_fp8_steps: expected f32 steps ({}, {}), a history ({}, length) or none, and a period of 1 "
           "to 3; got steps {}, history {}, period {}",
           n, kFp8StepStride, n, to_string(steps.shape),
           history.defined() ? to_string(history.shape) : "none", args.period);
  if (s.meta()) {
    s.meta()->add(s, op_cost("update_fp8_steps", OpClass::elementwise, 0, {amax}, {amax}));
    place(s, "update_fp8_steps", Rule::elementwise, {steps}, {amax});
    return;
  }
  LT_LAUNCH(s, update_fp8_steps, steps.ptr<float>(), amax.ptr<float>(),
            length > 0 ? history.ptr<float>() : nullptr, n, length, args);
}

}  // namespace ltrain
