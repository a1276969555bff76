// Grouped matmuls in FP8.
#include "models/layers/fp8.h"
#include "models/layers/step.h"

namespace ltrain {
namespace {

/// The received rows, out of memory for all possible rows.
Fp8Source that_came(Fp8Source source, const GroupRows& rows) {
  if (source.role != Fp8Role::weight) source.of = source.of.narrow(0, total_rows(rows));
  return source;
}

}  // namespace

Fp8Operand Fp8State::temporary_rows(Step& step, int slot, const Fp8Source& source, Tensor current,
                                    const GroupRows& rows) {
  if (as_it_is(source)) return temporary(step, slot, source, current);
  const int64_t k = source.of.cols();
  Fp8Operand all = operand(step.memory, MemoryKind::temporaries, source.role, source.of.shape[0], k);
  const Fp8Source some = that_came(source, rows);
  const int64_t n = some.of.shape[0];
  Fp8Operand part = all;
  part.codes = all.codes.narrow(0, n);
  if (all.block_rows) part.steps = all.steps.narrow(0, n);
  if (n > 0) round(step, slot, some, current, part);
  if (!all.block_rows) all.steps = part.steps;
  all.of = source.of;
  return all;
}

/// Magnitudes were noted when it was first quantized.
Fp8Operand Fp8State::temporary_transposed(Step& step, int slot, const Fp8Source& source, Tensor current,
                                          const GroupRows& rows) const {
  const int64_t most = source.of.shape[0], k = source.of.cols(), groups = static_cast<int64_t>(rows.size());
  const auto room = [&](const char* name, DType type, int64_t n) {
    return step.memory.allocate(MemoryKind::temporaries, name, type, {n, k});
  };
  const DType codes = format(source.role);
  Fp8Operand out;
  out.of = source.of;
  out.transposed = true;
  out.codes = room("rounded operand", codes, fp8_transposed_rows(most, groups));
  Tensor scratch;
  if (settings_.recipe == Fp8Recipe::blockwise) {
    out.block_rows = 1;
    out.steps = room("steps of blocks", DType::f32, fp8_transposed_blocks(most, groups));
  } else {
    out.steps = settings_.recipe == Fp8Recipe::delayed ? element(steps_, slot, source.role) : current;
    scratch = room("rows of a group", codes, fp8_filled_rows(most));
  }
  quantize_transposed(step.compute, out, source.of, scratch, rows);
  if (scratch.defined()) step.memory.release(scratch);
  return out;
}

void Fp8State::multiply_groups(Step& step, int slot, Tensor out, const Fp8Source& a, const Fp8Source& b,
                               const GroupRows& rows, bool accumulate) {
  KeptWeight* kept = this->kept(step, slot, b);
  Tensor current = current_steps(step, that_came(a, rows), that_came(b, rows), kept);
  const auto current_of = [&](int64_t i) {
    return current.defined() ? current.flat(i * kFp8StepStride, {1}) : current;
  };
  const bool gradient = b.role != Fp8Role::weight;
  Fp8Operand left = gradient ? temporary_transposed(step, slot, a, current_of(0), rows)
                             : temporary_rows(step, slot, a, current_of(0), rows);
  Fp8Operand right = gradient ? temporary_transposed(step, slot, b, current_of(1), rows)
                     : kept   ? rounded_weight(step, slot, b, *kept)
                              : temporary(step, slot, b, current_of(1));
  gradient ? grouped_matmul_fp8_dw(step.compute, out, left, right, rows, accumulate)
           : grouped_matmul_fp8(step.compute, out, left, right, rows);
  if (!kept) release(step, right);
  if (!as_it_is(a)) release(step, left);
  if (current.defined()) step.memory.release(current);
}

}  // namespace ltrain
