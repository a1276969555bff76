// Token embedding, with learned positions if the model has them.
#pragma once
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/placement.h"
#include "kernels/tensor/row_map.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// Vocabulary part of a rank's table: rows of tokens [first, first + rows) of `total`, sharded over the
/// mesh's `axis`.
struct VocabPart {
  int64_t first = 0, rows = 0, total = 0;
  Axis axis = Axis::tensor;
};

/// Throws with ExitCode::data at a token outside [0, vocab).
void check_tokens(const int32_t* ids, int64_t count, int64_t vocab);

/// y[t] = table[tokens[t] - first] + positions[position of t]; tokens of other parts have zeros for the first
/// term. tokens: (T) i32; table: (at least part.rows, C); positions: (P, C) or undefined; y: (T, C). Throws
/// with ExitCode::data at a token outside [0, total).
void embedding_forward(Stream& s, Tensor y, Tensor tokens, Tensor table, Tensor positions, const RowMap& rows,
                       const VocabPart& part);
/// y[t] += positions[position of t].
void position_forward(Stream& s, Tensor y, Tensor positions, const RowMap& rows);

/// dtable[tokens[t] - first] += dy[t] for tokens of this part, in ascending t for any number of threads.
/// dtable: f32 (f64 for f64). Without `accumulate` it is overwritten, with zeros for absent tokens.
void embedding_backward(Stream& s, Tensor dtable, Tensor dy, Tensor tokens, const VocabPart& part,
                        bool accumulate);
/// dpositions[position of t] (+)= dy[t]; without `accumulate` other rows become zero.
void position_backward(Stream& s, Tensor dpositions, Tensor dy, const RowMap& rows, bool accumulate);

LT_KERNEL(embedding_forward, DType t, void* y, const int32_t* tokens, const void* table,
          const void* positions, int64_t rows, int64_t cols, RowMapArgs map, VocabPart part)
LT_KERNEL(position_forward, DType t, void* y, const void* positions, int64_t rows, int64_t cols,
          RowMapArgs map)
LT_KERNEL(embedding_backward, DType t, void* dtable, const void* dy, const int32_t* tokens, int64_t rows,
          int64_t cols, int64_t table_rows, VocabPart part, bool accumulate)
LT_KERNEL(position_backward, DType t, void* dpositions, const void* dy, int64_t rows, int64_t cols,
          RowMapArgs map, int64_t positions, bool accumulate)

}  // namespace ltrain
