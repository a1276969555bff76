#include "kernels/optimizer/fake_quantize.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void fake_quantize(Stream& s, Tensor out, Tensor w, WeightCodes codes, int64_t group, DType type) {
  LT_CHECK(codes != WeightCodes::none, "fake_quantize: expected codes int4, int8 or fp8, got none");
  LT_CHECK(group > 0 && w.elements() % group == 0 && out.elements() == w.elements(),
           "fake_quantize: expected full groups of {} elements, got {} elements into {}", group, w.elements(),
           out.elements());
  const DType wide = type == DType::f64 ? DType::f64 : DType::f32;
  LT_CHECK((type == wide || is_half(type)) && w.dtype == wide && (out.dtype == wide || out.dtype == type),
           "fake_quantize: expected weights in {} and an output in {} or {}, got {} and {}", dtype_name(wide),
           dtype_name(wide), dtype_name(type), dtype_name(w.dtype), dtype_name(out.dtype));
  if (s.meta()) {
    s.meta()->add(
        s, op_cost("fake_quantize", OpClass::optimizer, 6.0 * static_cast<double>(w.elements()), {out}, {w}));
    place(s, "fake_quantize", Rule::elementwise, {out}, {w});
    return;
  }
  LT_LAUNCH(s, fake_quantize, out.dtype, type, out.data, w.data, codes, group, w.elements());
}

}  // namespace ltrain
