#include "kernels/optimizer/onebit/error_feedback.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

void check(const char* op, Code code, const Tensor& coded, const Tensor& values, const Tensor& where,
           int ranks = 1) {
  const int64_t n = values.elements();
  LT_CHECK((values.dtype == DType::f32 || values.dtype == DType::f64) && n % code_block(code) == 0 &&
               coded.dtype == DType::u8 && coded.elements() == ranks * coded_bytes(code, values.dtype, n) &&
               (!where.defined() || (where.elements() == n && where.dtype == values.dtype)),
           "{}: expected f32 or f64 values in multiples of {} elements and {} coded bytes for {} ranks, got "
           "{} {} values and {} bytes",
           op, code_block(code), ranks * coded_bytes(code, values.dtype, n), ranks, n,
           dtype_name(values.dtype), coded.elements());
}

OpCost cost(const char* op, TensorList outs, TensorList ins, const Tensor& where) {
  OpCost c = op_cost(op, OpClass::elementwise, 4.0 * outs.begin()->elements(), outs, ins);
  if (where.defined()) c.bytes += static_cast<double>(where.bytes());
  return c;
}

}  // namespace

void compress(Stream& s, Code code, Tensor coded, Tensor values, Tensor error, Tensor where) {
  check("compress", code, coded, values, where);
  LT_CHECK(error.elements() == values.elements() && error.dtype == values.dtype,
           "compress: expected an error of {} {} elements, got {} {}", values.elements(),
           dtype_name(values.dtype), error.elements(), dtype_name(error.dtype));
  if (s.meta()) {
    s.meta()->add(s, cost("compress", {error, coded}, {error, values}, where));
    place(s, "compress", Rule::elementwise, {coded}, {values});
    return;
  }
  LT_LAUNCH(s, compress, values.dtype, code, coded.data, values.data, error.data, where.data,
            values.elements());
}

void compress_sum(Stream& s, Code code, Tensor out, Tensor coded, int ranks, double factor, Tensor error,
                  Tensor where) {
  check("compress_sum", code, coded, error, where, ranks);
  LT_CHECK(out.dtype == DType::u8 && out.elements() * ranks == coded.elements(),
           "compress_sum: expected {} coded bytes of output, got {}", coded.elements() / ranks,
           out.elements());
  if (s.meta()) {
    s.meta()->add(s, cost("compress_sum", {error, out}, {error, coded}, where));
    place(s, "compress_sum", Rule::elementwise, {out}, {coded});
    return;
  }
  LT_LAUNCH(s, compress_sum, error.dtype, code, out.data, coded.data, ranks, factor, error.data, where.data,
            error.elements());
}

void decompress(Stream& s, Code code, Tensor values, Tensor coded, Tensor where) {
  check("decompress", code, coded, values, where);
  if (s.meta()) {
    s.meta()->add(s, cost("decompress", {values}, {coded}, where));
    place(s, "decompress", Rule::elementwise, {values}, {coded});
    return;
  }
  LT_LAUNCH(s, decompress, values.dtype, code, values.data, coded.data, where.data, values.elements());
}

}  // namespace ltrain
