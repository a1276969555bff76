#include "kernels/elementwise/group_codes.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

SectionedRows check(const char* op, const GroupCodes& g, const Tensor& x) {
  LT_CHECK(g.sections > 0 && x.cols() % g.sections == 0,
           "{}: expected columns divisible into {} sections, got {}", op, g.sections, x.cols());
  const int64_t groups = group_count(x.cols(), g.sections);
  LT_CHECK((g.codes.dtype == DType::u8 || g.codes.dtype == DType::f8e4m3) && g.codes.shape == x.shape,
           "{}: expected u8 or f8e4m3 codes of {}, got {} {}", op, to_string(x.shape),
           dtype_name(g.codes.dtype), to_string(g.codes.shape));
  const DType scale = x.dtype == DType::f64 ? DType::f64 : DType::f32;
  LT_CHECK(g.scales.dtype == scale && g.scales.elements() == x.rows() * groups,
           "{}: expected {} scales of {} rows and {} groups, got {} {}", op, dtype_name(scale), x.rows(),
           groups, dtype_name(g.scales.dtype), to_string(g.scales.shape));
  return {.rows = x.rows(), .sections = g.sections, .width = x.cols() / g.sections};
}

}  // namespace

void encode_groups(Stream& s, const GroupCodes& to, Tensor x, const RowRandom& random) {
  const SectionedRows rows = check("encode_groups", to, x);
  LT_CHECK(random.parts == 1 || rows.width % kGroupChannels == 0,
           "encode_groups: expected full groups of {} channels on each of {} ranks, got {} channels",
           kGroupChannels, random.parts, rows.width);
  const bool to_fp8 = to.codes.dtype == DType::f8e4m3;
  if (s.meta()) {
    const double flops = (to_fp8 ? 6.0 : 20.0) * static_cast<double>(x.elements());
    s.meta()->add(s, op_cost("encode_groups", OpClass::elementwise, flops, {to.codes, to.scales}, {x}));
    place(s, "encode_groups", Rule::elementwise, {to.codes, to.scales}, {x});
    return;
  }
  LT_LAUNCH(s, encode_groups, x.dtype, to_fp8, static_cast<uint8_t*>(to.codes.data), to.scales.data, x.data,
            rows, random.args());
}

void decode_groups(Stream& s, Tensor x, const GroupCodes& from) {
  const SectionedRows rows = check("decode_groups", from, x);
  const bool from_fp8 = from.codes.dtype == DType::f8e4m3;
  if (s.meta()) {
    const double flops = 2.0 * static_cast<double>(x.elements());
    s.meta()->add(s, op_cost("decode_groups", OpClass::elementwise, flops, {x}, {from.codes, from.scales}));
    place(s, "decode_groups", Rule::elementwise, {x}, {from.codes, from.scales});
    return;
  }
  LT_LAUNCH(s, decode_groups, x.dtype, from_fp8, x.data, static_cast<const uint8_t*>(from.codes.data),
            from.scales.data, rows);
}

}  // namespace ltrain
