#include "kernels/optimizer/adamw_8bit.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

void check(const CodedMoments& m, int64_t n) {
  LT_CHECK(n % kCodeBlock == 0 && m.first.elements() == n && m.second.elements() == n &&
               m.first.dtype == DType::u8 && m.second.dtype == DType::u8 && m.scales.dtype == DType::f32 &&
               m.scales.elements() == 2 * (n / kCodeBlock),
           "8-bit moments: expected u8 codes of {} elements, a multiple of {}, and {} f32 scales; got {} and "
           "{} codes and {} scales",
           n, kCodeBlock, 2 * (n / kCodeBlock), m.first.elements(), m.second.elements(), m.scales.elements());
}

}  // namespace

void adamw_8bit(Stream& s, const std::vector<CodedPart>& parts) {
  LT_CHECK(!parts.empty(), "8-bit AdamW: expected at least one part, got none");
  OpCost cost;
  std::vector<CodedSpan> spans;
  const DType low_type = parts[0].low.dtype;
  for (const CodedPart& p : parts) {
    const int64_t n = p.master.elements();
    const CodedMoments& m = p.moments;
    check(m, n);
    LT_CHECK(
        p.master.dtype == DType::f32 && p.grad.dtype == DType::f32 && p.grad.elements() == n &&
            p.low.defined() == parts[0].low.defined() &&
            (!p.low.defined() || (p.low.elements() == n && is_half(p.low.dtype) && p.low.dtype == low_type)),
        "8-bit AdamW: expected f32 weights and gradients of {} elements, and 16-bit copies of one dtype or "
        "none; got weights in {}, {} gradients in {}",
        n, dtype_name(p.master.dtype), p.grad.elements(), dtype_name(p.grad.dtype));
    if (!s.meta()) {
      spans.push_back({p.master.data, m.first.data, m.second.data, m.scales.data, p.grad.data, p.low.data, n,
                       p.decay, p.args});
      continue;
    }
    OpCost own = op_cost("adamw_8bit", OpClass::optimizer, 30.0 * n, {p.master, m.first, m.second, m.scales},
                         {p.master, m.first, m.second, m.scales, p.grad});
    if (p.low.defined()) own.bytes += static_cast<double>(p.low.bytes());
    own.flops += cost.flops, own.bytes += cost.bytes;
    cost = own;
    place_update(s, "adamw_8bit", p.master, p.grad, m.first.record->place);
    if (p.low.defined()) place_update(s, "adamw_8bit", p.low, p.grad, m.first.record->place);
  }
  if (s.meta()) return s.meta()->add(s, cost);
  LT_LAUNCH(s, adamw_8bit, low_type, spans);
}

void decode_moments(Stream& s, Tensor values, const CodedMoments& m) {
  const int64_t n = m.first.elements();
  check(m, n);
  LT_CHECK(values.dtype == DType::f32 && values.elements() == 2 * n,
           "8-bit moments: expected {} f32 values, got {} {}", 2 * n, values.elements(),
           dtype_name(values.dtype));
  LT_CHECK(!s.meta(), "expected a device for decoding moments for a checkpoint, got meta");
  LT_LAUNCH(s, decode_moments, values.data, m.first.data, m.second.data, m.scales.data, n);
}

void encode_moments(Stream& s, const CodedMoments& m, Tensor values) {
  const int64_t n = m.first.elements();
  check(m, n);
  LT_CHECK(values.dtype == DType::f32 && values.elements() == 2 * n,
           "8-bit moments: expected {} f32 values, got {} {}", 2 * n, values.elements(),
           dtype_name(values.dtype));
  LT_CHECK(!s.meta(), "expected a device for encoding moments from a checkpoint, got meta");
  LT_LAUNCH(s, encode_moments, m.first.data, m.second.data, m.scales.data, values.data, n);
}

}  // namespace ltrain
