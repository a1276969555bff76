#include "kernels/optimizer/round_stochastic.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void round_stochastic(Stream& s, Tensor out, Tensor in, uint64_t seed, uint64_t stream,
                      const BoxElements& elements) {
  LT_CHECK(out.dtype == DType::bf16 && in.dtype == DType::f32 && out.elements() == in.elements(),
           "stochastic rounding: expected f32 to bf16 of {} elements, got {} to {} of {} elements",
           in.elements(), dtype_name(in.dtype), dtype_name(out.dtype), out.elements());
  if (s.meta()) {
    s.meta()->add(s, op_cost("round_stochastic", OpClass::optimizer, 60.0 * in.elements(), {out}, {in}));
    place(s, "round_stochastic", Rule::elementwise, {out}, {in});
    return;
  }
  LT_LAUNCH(s, round_stochastic, out.data, in.data, in.elements(), seed, stream, elements);
}

}  // namespace ltrain
