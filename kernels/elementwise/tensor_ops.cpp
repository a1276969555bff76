#include "kernels/elementwise/tensor_ops.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void fill_zero(Stream& s, Tensor t) {
  if (s.meta()) {
    s.meta()->add(s, op_cost("fill_zero", OpClass::elementwise, 0, {t}, {}));
    place_zero(t);
    return;
  }
  LT_LAUNCH(s, fill_zero, t.data, t.bytes());
}

void cast(Stream& s, Tensor out, Tensor in) {
  LT_CHECK(out.elements() == in.elements(), "cast: expected {} elements of output, got {}",
           to_string(in.shape), to_string(out.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("cast", OpClass::elementwise, 0, {out}, {in}));
    place(s, "cast", Rule::linear, {out}, {in});
    return;
  }
  LT_LAUNCH(s, cast, out.dtype, in.dtype, out.data, in.data, in.elements());
}

void add_to(Stream& s, Tensor y, Tensor x) {
  LT_CHECK(y.elements() == x.elements() && y.dtype == x.dtype,
           "add_to: expected x of {} {} elements, got {} {}", y.elements(), dtype_name(y.dtype), x.elements(),
           dtype_name(x.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("add_to", OpClass::elementwise, 1.0 * x.elements(), {y}, {y, x}));
    place(s, "add_to", Rule::linear, {y}, {y, x});
    return;
  }
  LT_LAUNCH(s, add_to, y.dtype, y.data, x.data, x.elements());
}

void scale_by(Stream& s, Tensor y, double factor) {
  if (s.meta()) {
    s.meta()->add(s, op_cost("scale_by", OpClass::elementwise, 1.0 * y.elements(), {y}, {y}));
    place(s, "scale_by", Rule::linear, {y}, {y});
    return;
  }
  LT_LAUNCH(s, scale_by, y.dtype, y.data, y.elements(), factor);
}

void add_bias(Stream& s, Tensor y, Tensor bias) {
  LT_CHECK(y.cols() == bias.elements() && y.dtype == bias.dtype,
           "add_bias: expected a bias of {} {} elements, got {} {}", y.cols(), dtype_name(y.dtype),
           bias.elements(), dtype_name(bias.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("add_bias", OpClass::elementwise, 1.0 * y.elements(), {y}, {y}));
    place_add_vector(s, "add_bias", y, bias);
    return;
  }
  LT_LAUNCH(s, add_bias, y.dtype, y.data, bias.data, y.rows(), y.cols());
}

void sum_rows(Stream& s, Tensor out, Tensor x, bool accumulate) {
  LT_CHECK(out.elements() == x.cols(), "sum_rows: expected out of {} elements, got {}", x.cols(),
           to_string(out.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("sum_rows", OpClass::elementwise, 1.0 * x.elements(), {}, {x}));
    place(s, "sum_rows", Rule::sum_rows, {out}, {x}, accumulate);
    return;
  }
  LT_LAUNCH(s, sum_rows, x.dtype, out.data, x.data, x.rows(), x.cols(), accumulate);
}

void sum_squares(Stream& s, Tensor total, Tensor x) {
  LT_CHECK(total.elements() == 1, "sum_squares: expected one total, got {}", to_string(total.shape));
  sum_squares(s, total, std::vector<SquaresOf>{{x, 0}});
}

void sum_squares(Stream& s, Tensor totals, const std::vector<SquaresOf>& parts) {
  LT_CHECK(totals.dtype == DType::f64 && !parts.empty(),
           "sum_squares: expected f64 totals and at least one part, got {} totals and {} parts",
           dtype_name(totals.dtype), parts.size());
  std::vector<SquaresPart> pointers;
  for (const auto& [x, total] : parts) {
    LT_CHECK(x.dtype == parts[0].x.dtype && total >= 0 && total < totals.elements(),
             "sum_squares: expected parts of dtype {} with totals below {}, got dtype {} and total {}",
             dtype_name(parts[0].x.dtype), totals.elements(), dtype_name(x.dtype), total);
    pointers.push_back({x.data, x.elements(), total});
  }
  if (s.meta()) {
    OpCost cost = op_cost("sum_squares", OpClass::optimizer, 0, {}, {});
    for (const auto& [x, total] : parts) {
      cost.flops += 2.0 * static_cast<double>(x.elements());
      cost.bytes += static_cast<double>(x.bytes());
    }
    s.meta()->add(s, cost);
    for (const auto& [x, total] : parts)
      place(s, "sum_squares", Rule::sum_rows, {totals.flat(total, {1})}, {x}, /*accumulate=*/true);
    return;
  }
  const OpRange range(s, "sum_squares");
  const DType type = parts[0].x.dtype;
  double* to = totals.ptr<double>();
  if (s.device() == DeviceKind::cuda) return sum_squares_cuda(s, type, to, pointers);
  s.launch([=] {
    for (const SquaresPart& p : pointers) LT_CPU(sum_squares_cpu)(type, to + p.total, p.x, p.elements);
  });
}

void fill_normal(Stream& s, Tensor t, uint64_t seed, uint64_t stream, int64_t first, double mean,
                 double std) {
  if (s.meta()) {
    s.meta()->add(s, op_cost("fill_normal", OpClass::elementwise, 60.0 * t.elements(), {t}, {}));
    return;
  }
  LT_LAUNCH(s, fill_normal, t.dtype, t.data, t.elements(), seed, stream, first, mean, std);
}

void fill_value(Stream& s, Tensor t, double value) {
  if (s.meta()) {
    s.meta()->add(s, op_cost("fill_value", OpClass::elementwise, 0, {t}, {}));
    return;
  }
  LT_LAUNCH(s, fill_value, t.dtype, t.data, t.elements(), value);
}

}  // namespace ltrain
