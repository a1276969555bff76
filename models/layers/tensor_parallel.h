// The conjugate pairs of Megatron-LM's tensor and sequence parallelism (arXiv:1909.08053, 2205.05198),
// between the residual stream and the matmuls. "Whole" is (B * seq, C) on every rank. "Stream" is a rank's
// rows between matmuls: all rows, or with sequence parallelism its run of the rows. The same operations exist
// over any axis, for 3D tensor parallelism, and partly for 2D.
#pragma once
#include "models/layers/step.h"

namespace ltrain {

/// Full rows from the stream: all-gather, or `x` itself if rows are not sharded. Release the result with
/// release_whole.
Tensor gather_rows(Step& step, Tensor x, const char* name);
void release_whole(Step& step, Tensor& whole, const Tensor& stream);

/// A sum in flight. `y` is valid for compute after wait().
struct RowSum {
  AsyncHandle done;
  Tensor partial;  ///< released after it
  void wait(Step& step);
};
/// stream = sum over the tensor axis of the partial sums `whole`: all-reduce in place (whole is stream), or
/// reduce-scatter into stream.
RowSum sum_rows_start(Step& step, Tensor stream, Tensor whole);
/// Destination of partial sums for `stream`: `stream` itself, or a temporary of full rows.
Tensor partial_rows(Step& step, Tensor stream, int64_t rows, const char* name);

/// All-gather of a group's rows, in flight.
struct Gathered {
  Tensor whole;  ///< (ranks * rows, columns); `own` itself in a group of one
  AsyncHandle done;
  Tensor wait(Step& step) {
    done.wait(step.compute);
    return whole;
  }
};
Gathered gather_start(Step& step, const Group& group, Tensor own, const char* name);
/// gather_rows in flight.
Gathered gather_rows_start(Step& step, Tensor x, const char* name);
/// out = this rank's rows of the sum of `whole` over the group. In a group of one they are one tensor.
AsyncHandle scatter_sum_start(Step& step, const Group& group, Tensor out, Tensor whole);
/// Destination of summands of all ranks' rows of `out`: a temporary, or `out` itself in a group of one.
Tensor summand_rows(Step& step, const Group& group, Tensor out, const char* name);

}  // namespace ltrain
