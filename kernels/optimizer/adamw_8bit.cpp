#include "kernels/optimizer/adamw_8bit.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

void check(const CodedMoments& m, int64_t n) {
  LT_CHECK(n % kCodeBlock == 0 && m.first.elements() == n && m.second.elements() == n &&
               m.first.dtype == DType::u8 && m.second.dtype == DType::u8 && m.scales.dtype == DType::f32 &&
               m.scales.elements() == 2 * (n / kCodeBlock),
           "8-bit moments of {} elements", n);
}

}  // namespace

void adamw_8bit(Stream& s, Tensor master, const CodedMoments& m, Tensor grad, Tensor low, bool decay,
                const AdamwArgs& args) {
  const int64_t n = master.elements();
  check(m, n);
  LT_CHECK(master.dtype == DType::f32 && grad.dtype == DType::f32 && grad.elements() == n &&
               (!low.defined() || (low.elements() == n && is_half(low.dtype))),
           "8-bit AdamW of {} elements of {}", n, dtype_name(master.dtype));
  if (s.meta()) {
    OpCost cost = op_cost("adamw_8bit", OpClass::optimizer, 30.0 * n, {master, m.first, m.second, m.scales},
                          {master, m.first, m.second, m.scales, grad});
    if (low.defined()) cost.bytes += static_cast<double>(low.bytes());
    s.meta()->add(s, cost);
    place_update(s, "adamw_8bit", master, grad, m.first.record->place);
    if (low.defined()) place_update(s, "adamw_8bit", low, grad, m.first.record->place);
    return;
  }
  LT_LAUNCH(s, adamw_8bit, master.data, m.first.data, m.second.data, m.scales.data, grad.data, low.dtype,
            low.data, n, decay, args);
}

void decode_moments(Stream& s, Tensor values, const CodedMoments& m) {
  const int64_t n = m.first.elements();
  check(m, n);
  LT_CHECK(values.dtype == DType::f32 && values.elements() == 2 * n, "{} values of {} codes",
           values.elements(), n);
  LT_CHECK(!s.meta(), "moments are decoded for checkpoints, which meta has none of");
  LT_LAUNCH(s, decode_moments, values.data, m.first.data, m.second.data, m.scales.data, n);
}

void encode_moments(Stream& s, const CodedMoments& m, Tensor values) {
  const int64_t n = m.first.elements();
  check(m, n);
  LT_CHECK(values.dtype == DType::f32 && values.elements() == 2 * n, "{} values of {} codes",
           values.elements(), n);
  LT_CHECK(!s.meta(), "moments are encoded from checkpoints, which meta has none of");
  LT_LAUNCH(s, encode_moments, m.first.data, m.second.data, m.scales.data, values.data, n);
}

}  // namespace ltrain
