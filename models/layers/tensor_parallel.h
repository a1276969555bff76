// The conjugate pairs of Megatron-LM's tensor and sequence parallelism (arXiv:1909.08053, 2205.05198),
// between the residual stream and the matmuls: "whole" is (B * seq, C) on every rank, "stream" is what a rank
// has between matmuls: the same, or with sequence parallelism its run of the rows. And the same moves over
// any axis, for a tensor-parallel cube and what a grid shares with it.
#pragma once
#include "models/layers/step.h"

namespace ltrain {

/// Whole rows from the stream: all-gather, or `x` itself where nothing is cut. Give the result back with
/// release_whole.
Tensor gather_rows(Step& step, Tensor x, const char* name);
void release_whole(Step& step, Tensor& whole, const Tensor& stream);

/// A sum that is under way. `y` is valid for compute after wait().
struct RowSum {
  AsyncHandle done;
  Tensor partial;  ///< to be released after it
  void wait(Step& step);
};
/// stream := sum over the tensor axis of the partial sums `whole`: all-reduce in place (whole is stream), or
/// reduce-scatter into stream.
RowSum sum_rows_start(Step& step, Tensor stream, Tensor whole);
/// Where partial sums for `stream` are to be written: `stream` itself, or a temporary of whole rows.
Tensor partial_rows(Step& step, Tensor stream, int64_t rows, const char* name);

/// Rows of all ranks of a group, on their way to each.
struct Gathered {
  Tensor whole;  ///< (ranks * rows, columns); `own` itself in a group of one
  AsyncHandle done;
  Tensor wait(Step& step) {
    done.wait(step.compute);
    return whole;
  }
};
Gathered gather_start(Step& step, const Group& group, Tensor own, const char* name);
/// gather_rows, under way.
Gathered gather_rows_start(Step& step, Tensor x, const char* name);
/// out := this rank's rows of the sum of `whole` over the group. In a group of one they are one tensor.
AsyncHandle scatter_sum_start(Step& step, const Group& group, Tensor out, Tensor whole);
/// Where to write summands of all ranks' rows of `out`: a temporary, or `out` itself in a group of one.
Tensor summand_rows(Step& step, const Group& group, Tensor out, const char* name);

}  // namespace ltrain
