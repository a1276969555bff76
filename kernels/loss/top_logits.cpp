#include "kernels/loss/top_logits.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

void check_rows(const char* op, const Tensor& teacher, const Tensor& student, const Tensor& targets,
                const Tensor& stats, const VocabColumns& part) {
  const int64_t numbers = kRestStats * student.rows();
  LT_CHECK(teacher.shape == student.shape && teacher.dtype == student.dtype && stats.dtype == student.dtype &&
               targets.elements() == student.rows() && part.columns <= student.cols() &&
               stats.elements() % numbers == 0,
           "{}: expected logits {} {}, {} targets, statistics (ranks * {}, {}) and at most {} columns, got a "
           "teacher's {} "
           "{}, {} targets, statistics {} {} and {} columns",
           op, to_string(student.shape), dtype_name(student.dtype), student.rows(), student.rows(),
           int{kRestStats}, student.cols(), to_string(teacher.shape), dtype_name(teacher.dtype),
           targets.elements(), to_string(stats.shape), dtype_name(stats.dtype), part.columns);
}

}  // namespace

void spread_top_logits(Stream& s, Tensor teacher, Tensor stats, Tensor student, Tensor ids, Tensor values,
                       Tensor targets, const VocabColumns& part, double temperature, double soft_cap) {
  check_rows("spread_top_logits", teacher, student, targets, stats, part);
  LT_CHECK(ids.shape == values.shape && ids.rows() == student.rows() && values.dtype == student.dtype &&
               ids.dtype == DType::i32 && temperature > 0,
           "spread_top_logits: expected ids i32 and values {} of {} rows and a temperature above 0, got {} "
           "and {} {} of "
           "shape {}, and {}",
           dtype_name(student.dtype), student.rows(), to_string(ids.shape), dtype_name(values.dtype),
           "values", to_string(values.shape), temperature);
  if (s.meta()) {
    // The statistics read the row that was written.
    s.meta()->add(s, op_cost("spread_top_logits", OpClass::cross_entropy, 6.0 * student.elements(),
                             {teacher, stats}, {student, teacher, ids, values}));
    place(s, "spread_top_logits", Rule::elementwise, {teacher}, {student, ids, values, targets});
    place(s, "spread_top_logits", Rule::elementwise, {stats}, {student, ids, values, targets});
    place_row_statistics(s, stats);
    return;
  }
  LT_LAUNCH(s, spread_top_logits, student.dtype, teacher.data, stats.data, student.data, ids.ptr<int32_t>(),
            values.data, targets.ptr<int32_t>(), student.rows(), student.cols(), ids.cols(), part,
            temperature, soft_cap);
}

void fill_rest_logits(Stream& s, Tensor teacher, Tensor student, Tensor rest, Tensor targets, Tensor stats,
                      const VocabColumns& part, double temperature, double soft_cap) {
  check_rows("fill_rest_logits", teacher, student, targets, stats, part);
  LT_CHECK(rest.elements() == student.rows() && rest.dtype == student.dtype,
           "fill_rest_logits: expected {} sums {}, got {} {}", student.rows(), dtype_name(student.dtype),
           rest.elements(), dtype_name(rest.dtype));
  if (s.meta()) {
    s.meta()->add(s, op_cost("fill_rest_logits", OpClass::cross_entropy, 2.0 * student.elements(), {teacher},
                             {teacher, student, rest, stats}));
    place(s, "fill_rest_logits", Rule::elementwise, {teacher}, {teacher, student, rest, targets, stats});
    return;
  }
  LT_LAUNCH(s, fill_rest_logits, student.dtype, teacher.data, student.data, rest.data, targets.ptr<int32_t>(),
            stats.data, static_cast<int>(stats.elements() / (kRestStats * student.rows())), student.rows(),
            student.cols(), part, temperature, soft_cap);
}

}  // namespace ltrain
