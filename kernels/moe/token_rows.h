// Permute and unpermute of token rows: without atomics, each row of a result is written once.
#pragma once
#include "kernels/moe/route.h"
#include "kernels/tensor/kernel.h"
#include "kernels/tensor/stream.h"

namespace ltrain {

/// out[row] = x[token of row] for the first `rows` rows. x: (T, C); out: (at least rows, C).
void permute_rows(Stream& s, Tensor out, Tensor x, const Routing& r, int64_t rows);
/// y[t] = sum over j of [weights[t, j]] z[slots[t, j]], in the order of j; dropped assignments add nothing.
/// z: (rows, C), y: (T, C). `weighted` false: weights 1, the backward of permute_rows.
void combine_rows(Stream& s, Tensor y, Tensor z, const Routing& r, bool weighted);
/// Gradients of combine_rows with weights: dz[row] = weight dy[token]; dweights (T, k, dtype of the weights)
/// = dy[token] . z[row], 0 for dropped assignments. dz may alias z.
void combine_rows_backward(Stream& s, Tensor dz, Tensor dweights, Tensor dy, Tensor z, const Routing& r);

struct TokenRows {
  const int32_t *slots, *sources;
  const void* weights;  ///< null: 1
  int64_t tokens, top_k, cols;
  template <class F>
  void sizes(F&& f) const {  // names for messages
    f("tokens", tokens), f("top_k", top_k), f("cols", cols);
  }
};
LT_KERNEL(permute_rows, DType t, void* out, const void* x, TokenRows p, int64_t rows)
LT_KERNEL(combine_rows, DType t, void* y, const void* z, TokenRows p)
LT_KERNEL(combine_rows_backward, DType t, void* dz, void* dweights, const void* dy, const void* z,
          TokenRows p)

}  // namespace ltrain
