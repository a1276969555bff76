#include "kernels/elementwise/copy_rectangles.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {

void copy_rectangles(Stream& s, Tensor out, Tensor in, std::vector<CopyRectangle> parts) {
  int64_t elements = 0;
  for (const CopyRectangle& p : parts) {
    const auto inside = [&](const Tensor& t, int64_t row, int64_t col) {
      return row >= 0 && col >= 0 && row + p.rows <= t.rows() && col + p.cols <= t.cols();
    };
    LT_CHECK(
        p.rows >= 0 && p.cols >= 0 && inside(in, p.from_row, p.from_col) && inside(out, p.to_row, p.to_col),
        "copy_rectangles: expected {} rows of {} columns within both matrices, got in {} from ({}, {}) and "
        "out {} from ({}, {})",
        p.rows, p.cols, to_string(in.shape), p.from_row, p.from_col, to_string(out.shape), p.to_row,
        p.to_col);
    elements += p.rows * p.cols;
  }
  if (s.meta()) {
    OpCost cost = op_cost("copy_rectangles", OpClass::elementwise, 0, {}, {});
    cost.dtype = out.dtype;
    cost.bytes = static_cast<double>(elements * (dtype_size(in.dtype) + dtype_size(out.dtype)));
    s.meta()->add(s, cost);
    // A copy to part of a written tensor must have the placement of the rest.
    const bool rest = elements < out.elements() && !out.record->last_writer.none();
    place(s, "copy_rectangles", Rule::linear, {out}, {in}, rest);
    return;
  }
  LT_LAUNCH(s, copy_rectangles, out.dtype, in.dtype, out.data, in.data, out.cols(), in.cols(), parts.data(),
            static_cast<int64_t>(parts.size()));
}

}  // namespace ltrain
