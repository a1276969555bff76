#include "kernels/optimizer/sparsify.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

/// A rank has w wherever it has x, so that the placement of x does not change.
void priced(Stream& s, std::string_view name, double flops, Tensor x, Tensor w) {
  s.meta()->add(s, op_cost(name, OpClass::optimizer, flops * static_cast<double>(x.elements()), {x}, {x, w}));
  place(s, name, Rule::elementwise, {x}, {x});
}

}  // namespace

void prune_2_4(Stream& s, Tensor x, Tensor w) {
  LT_CHECK(x.elements() == w.elements() && w.elements() % 4 == 0,
           "prune_2_4: expected x and w of the same number of elements, a multiple of 4; got {} and {}",
           x.elements(), w.elements());
  if (s.meta()) return priced(s, "prune_2_4", 4, x, w);
  LT_LAUNCH(s, prune_2_4, x.dtype, w.dtype, x.data, w.data, x.elements());
}

void mask_by_zeros(Stream& s, Tensor x, Tensor w) {
  LT_CHECK(x.elements() == w.elements(), "mask_by_zeros: expected {} elements of w, got {}", x.elements(),
           w.elements());
  if (s.meta()) return priced(s, "mask_by_zeros", 1, x, w);
  LT_LAUNCH(s, mask_by_zeros, x.dtype, w.dtype, x.data, w.data, x.elements());
}

}  // namespace ltrain
