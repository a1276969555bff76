#include "kernels/loss/cross_entropy.h"

#include <algorithm>

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

void check_z_loss(const OutputZLoss& z) {
  const bool sum = z.sum.defined() && z.sum.elements() == 1 && z.sum.dtype == DType::f64;
  LT_CHECK(z.coeff == 0 || (z.coeff > 0 && sum),
           "z-loss: expected a coefficient of at least 0 and a sum of one f64, got {} and {}", z.coeff,
           z.sum.defined() ? to_string(z.sum.shape) : "no sum");
}

double* z_sum(const OutputZLoss& z) { return z.coeff > 0 ? z.sum.ptr<double>() : nullptr; }

}  // namespace

void cross_entropy(Stream& s, Tensor loss, Tensor dlogits, Tensor logits, Tensor targets, GradientScale scale,
                   double soft_cap, const OutputZLoss& z_loss) {
  LT_CHECK(
      targets.elements() == logits.rows() && loss.elements() == 1 && loss.dtype == DType::f64 &&
          (!dlogits.defined() || dlogits.shape == logits.shape),
      "cross entropy: expected {} targets, one f64 loss and dlogits {}, got {} targets and {} losses of {}",
      logits.rows(), to_string(logits.shape), targets.elements(), loss.elements(), dtype_name(loss.dtype));
  check_z_loss(z_loss);
  if (s.meta()) {
    OpCost cost = op_cost("cross_entropy", OpClass::cross_entropy, 8.0 * logits.elements(), {}, {logits});
    // The gradient needs the sum over the full row: logits that a block cannot keep are read again.
    const int64_t again =
        std::max<int64_t>(0, logits.cols() - (logits.dtype == DType::f32 ? kKeptLogits : 0));
    if (dlogits.defined())
      cost.bytes += static_cast<double>(dlogits.bytes() + logits.rows() * again * dtype_size(logits.dtype));
    s.meta()->add(s, cost);
    place(s, "cross_entropy", Rule::sum_rows, {loss}, {logits, targets}, /*accumulate=*/true);
    if (z_loss.coeff > 0)
      place(s, "cross_entropy", Rule::sum_rows, {z_loss.sum}, {logits, targets}, /*accumulate=*/true);
    if (dlogits.defined()) place(s, "cross_entropy", Rule::elementwise, {dlogits}, {logits, targets});
    return;
  }
  LT_LAUNCH(s, cross_entropy, logits.dtype, dlogits.defined() ? dlogits.dtype : logits.dtype,
            loss.ptr<double>(), dlogits.data, logits.data, targets.ptr<int32_t>(), logits.rows(),
            logits.cols(), scale, soft_cap, z_loss.coeff, z_sum(z_loss));
}

void soft_cap_logits(Stream& s, Tensor logits, double soft_cap) {
  LT_CHECK(soft_cap > 0, "expected a soft-cap above 0, got {}", soft_cap);
  if (s.meta()) {
    s.meta()->add(
        s, op_cost("soft_cap_logits", OpClass::elementwise, 8.0 * logits.elements(), {logits}, {logits}));
    place(s, "soft_cap_logits", Rule::elementwise, {logits}, {logits});
    return;
  }
  LT_LAUNCH(s, soft_cap_logits, logits.dtype, logits.data, logits.elements(), soft_cap);
}

void cross_entropy_stats(Stream& s, Tensor stats, Tensor logits, Tensor targets, const VocabColumns& part,
                         double soft_cap) {
  LT_CHECK(stats.elements() == 3 * logits.rows() && stats.dtype == logits.dtype &&
               targets.elements() == logits.rows() && part.columns <= logits.cols(),
           "cross entropy statistics: expected {} targets, at most {} columns and statistics ({}, 3) {}, got "
           "{} targets, {} columns and statistics {} {}",
           logits.rows(), logits.cols(), logits.rows(), dtype_name(logits.dtype), targets.elements(),
           part.columns, to_string(stats.shape), dtype_name(stats.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("cross_entropy_stats", OpClass::cross_entropy, 4.0 * logits.elements(), {stats},
                             {logits}));
    place(s, "cross_entropy_stats", Rule::elementwise, {stats}, {logits, targets});
    place_row_statistics(s, stats);
    return;
  }
  LT_LAUNCH(s, cross_entropy_stats, logits.dtype, stats.data, logits.data, targets.ptr<int32_t>(),
            logits.rows(), logits.cols(), part, soft_cap);
}

void cross_entropy_sharded(Stream& s, Tensor loss, Tensor dlogits, Tensor logits, Tensor targets,
                           Tensor stats, const VocabColumns& part, GradientScale scale, double soft_cap,
                           const OutputZLoss& z_loss) {
  LT_CHECK(stats.elements() % (3 * logits.rows()) == 0 && stats.dtype == logits.dtype &&
               targets.elements() == logits.rows(),
           "cross entropy: expected {} targets and statistics (ranks * {}, 3) {}, got {} targets and "
           "statistics {} {}",
           logits.rows(), logits.rows(), dtype_name(logits.dtype), targets.elements(), to_string(stats.shape),
           dtype_name(stats.dtype));
  check_z_loss(z_loss);
  if (s.meta()) {
    // The loss follows from the statistics; the gradient reads the logits once more.
    OpCost cost = op_cost("cross_entropy_sharded", OpClass::cross_entropy, 0, {}, {stats});
    if (dlogits.defined()) {
      cost.flops = 4.0 * static_cast<double>(logits.elements());
      cost.bytes += static_cast<double>(dlogits.bytes() + logits.bytes());
    }
    s.meta()->add(s, cost);
    place(s, "cross_entropy_sharded", Rule::sum_rows, {loss}, {stats, targets}, /*accumulate=*/true);
    if (z_loss.coeff > 0)
      place(s, "cross_entropy_sharded", Rule::sum_rows, {z_loss.sum}, {stats, targets}, /*accumulate=*/true);
    if (dlogits.defined())
      place(s, "cross_entropy_sharded", Rule::elementwise, {dlogits}, {logits, targets, stats});
    return;
  }
  const int64_t rows = logits.rows();
  LT_LAUNCH(s, cross_entropy_sharded, logits.dtype, dlogits.defined() ? dlogits.dtype : logits.dtype,
            loss.ptr<double>(), dlogits.data, logits.data, targets.ptr<int32_t>(), stats.data,
            static_cast<int>(stats.elements() / 3 / rows), rows, logits.cols(), part, scale, soft_cap,
            z_loss.coeff, z_sum(z_loss));
}

}  // namespace ltrain
