#include "kernels/optimizer/sparsify.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

/// A rank has w wherever it has x, so that the placement of x does not change.
void priced(Stream& s, std::string_view name, double flops, Tensor x, TensorList read) {
  s.meta()->add(s, op_cost(name, OpClass::optimizer, flops * static_cast<double>(x.elements()), {x}, read));
  place(s, name, Rule::elementwise, {x}, {x});
}

void check_pattern(const char* name, const SparsePattern& p, int64_t n) {
  LT_CHECK(0 < p.kept && p.kept <= p.group && p.group <= SparsePattern::kLargestGroup && p.cols % 4 == 0,
           "{}: expected groups of at most {} elements, and rows of full groups, got {}:{} and {} columns",
           name, SparsePattern::kLargestGroup, p.kept, p.group, p.cols);
  LT_CHECK(n % p.unit() == 0, "{}: expected a multiple of {} elements, got {}", name, p.unit(), n);
}

void check_masked(const char* name, const Tensor& low, const Tensor& w) {
  LT_CHECK(low.elements() == w.elements(), "{}: expected {} elements of w, got {}", name, low.elements(),
           w.elements());
  LT_CHECK(w.dtype == (low.dtype == DType::f64 ? DType::f64 : DType::f32),
           "{}: expected w of f32, or of f64 as the masked weights, got {} and {}", name, dtype_name(w.dtype),
           dtype_name(low.dtype));
}

}  // namespace

void prune(Stream& s, Tensor x, Tensor w, const SparsePattern& p) {
  LT_CHECK(x.elements() == w.elements(), "prune: expected {} elements of w, got {}", x.elements(),
           w.elements());
  check_pattern("prune", p, x.elements());
  if (s.meta()) return priced(s, "prune", 4, x, {x, w});
  LT_LAUNCH(s, prune, x.dtype, w.dtype, x.data, w.data, p, x.elements());
}

void mask_by_zeros(Stream& s, Tensor x, Tensor w) {
  LT_CHECK(x.elements() == w.elements(), "mask_by_zeros: expected {} elements of w, got {}", x.elements(),
           w.elements());
  if (s.meta()) return priced(s, "mask_by_zeros", 1, x, {x, w});
  LT_LAUNCH(s, mask_by_zeros, x.dtype, w.dtype, x.data, w.data, x.elements());
}

void choose_mask(Stream& s, Tensor low, Tensor w, Tensor revived, const SparsePattern& p) {
  check_masked("choose_mask", low, w);
  check_pattern("choose_mask", p, low.elements());
  LT_CHECK(!revived.defined() || revived.elements() == low.elements(),
           "choose_mask: expected {} elements of `revived`, got {}", low.elements(), revived.elements());
  if (s.meta()) return priced(s, "choose_mask", p.cols > 0 ? 40 : 4, low, {low, w});
  LT_LAUNCH(s, choose_mask, low.dtype, revived.dtype, low.data, w.data, revived.data, p, low.elements());
}

void masked_copy(Stream& s, Tensor low, Tensor w) {
  check_masked("masked_copy", low, w);
  if (s.meta()) {
    s.meta()->add(s, op_cost("masked_copy", OpClass::optimizer, 1.0 * static_cast<double>(w.elements()),
                             {low}, {low, w}));
    place(s, "masked_copy", Rule::elementwise, {low}, {w});
    return;
  }
  LT_LAUNCH(s, masked_copy, low.dtype, low.data, w.data, low.elements());
}

void masked_decay(Stream& s, Tensor grad, Tensor low, Tensor w, double factor) {
  check_masked("masked_decay", low, w);
  LT_CHECK(grad.elements() == w.elements(), "masked_decay: expected {} elements of the gradient, got {}",
           w.elements(), grad.elements());
  if (s.meta()) return priced(s, "masked_decay", 2, grad, {grad, low, w});
  LT_LAUNCH(s, masked_decay, grad.dtype, low.dtype, grad.data, low.data, w.data, factor, grad.elements());
}

}  // namespace ltrain
