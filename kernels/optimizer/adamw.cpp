#include "kernels/optimizer/adamw.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

void check(const AdamwPart& p, const AdamwPart& first) {
  const int64_t n = p.master.elements();
  int64_t end = 0;
  for (const AdamwRun& run : p.runs) {
    LT_CHECK(run.end > end, "adamw: expected ascending ends of runs, got {} after {}", run.end, end);
    end = run.end;
  }
  LT_CHECK(end == n, "adamw: expected runs that end at {} elements, got {}", n, end);
  const auto beside = [&](DType t) {
    return t == p.master.dtype || (t == DType::bf16 && p.master.dtype == DType::f32);
  };
  LT_CHECK(p.exp_avg.elements() == n && p.exp_avg_sq.elements() == n && p.grad.elements() == n &&
               beside(p.grad.dtype) && beside(p.exp_avg.dtype) && p.exp_avg.dtype == p.exp_avg_sq.dtype &&
               (!p.low.defined() || (p.low.elements() == n && is_half(p.low.dtype))),
           "adamw: expected moments and gradients of {} elements in {} (or bf16 for f32) and a 16-bit copy "
           "or none; got {} gradients in {} and {} moments in {}",
           n, dtype_name(p.master.dtype), p.grad.elements(), dtype_name(p.grad.dtype), p.exp_avg.elements(),
           dtype_name(p.exp_avg.dtype));
  LT_CHECK(p.master.dtype == first.master.dtype && p.grad.dtype == first.grad.dtype &&
               p.exp_avg.dtype == first.exp_avg.dtype && p.low.defined() == first.low.defined() &&
               p.low.dtype == first.low.dtype,
           "adamw: expected all parts in the dtypes of the first one (weights {}, gradients {}, moments {}), "
           "got {}, {}, {}",
           dtype_name(first.master.dtype), dtype_name(first.grad.dtype), dtype_name(first.exp_avg.dtype),
           dtype_name(p.master.dtype), dtype_name(p.grad.dtype), dtype_name(p.exp_avg.dtype));
}

}  // namespace

void adamw(Stream& s, const std::vector<AdamwPart>& parts) {
  if (parts.empty()) return;
  for (const AdamwPart& p : parts) check(p, parts.front());
  if (s.meta()) {
    OpCost cost;
    for (const AdamwPart& p : parts) {
      const OpCost one =
          op_cost("adamw", OpClass::optimizer, 14.0 * p.master.elements(),
                  {p.master, p.exp_avg, p.exp_avg_sq}, {p.master, p.exp_avg, p.exp_avg_sq, p.grad});
      if (&p == &parts.front()) {
        cost = one;
      } else {
        cost.flops += one.flops;
        cost.bytes += one.bytes;
      }
      if (p.low.defined()) cost.bytes += static_cast<double>(p.low.bytes());
    }
    s.meta()->add(s, cost);
    for (const AdamwPart& p : parts) {
      place_update(s, "adamw", p.master, p.grad, p.exp_avg.record->place);
      if (p.low.defined()) place_update(s, "adamw", p.low, p.grad, p.exp_avg.record->place);
    }
    return;
  }
  std::vector<AdamwSpan> spans;
  for (const AdamwPart& p : parts)
    spans.push_back({p.master.data, p.exp_avg.data, p.exp_avg_sq.data, p.grad.data, p.low.data, p.runs});
  const AdamwPart& p = parts.front();
  LT_LAUNCH(
      s, adamw,
      AdamwTypes{
          .master = p.master.dtype, .low = p.low.dtype, .moment = p.exp_avg.dtype, .grad = p.grad.dtype},
      spans);
}

void adamw(Stream& s, Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor grad, Tensor low,
           const std::vector<AdamwRun>& runs) {
  adamw(s, {AdamwPart{.master = master,
                      .exp_avg = exp_avg,
                      .exp_avg_sq = exp_avg_sq,
                      .grad = grad,
                      .low = low,
                      .runs = runs}});
}

}  // namespace ltrain
