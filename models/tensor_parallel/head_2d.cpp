// Loss with 2D tensor parallelism: rows of logits are sharded over row, the vocabulary over column. The
// weight has the layout of an embedding, (V over row, H over column), so that it can be tied.
#include <algorithm>

#include "models/layers/head.h"
#include "models/tensor_parallel/summa.h"

namespace ltrain {

void Head::loss_2d(Step& step, const MicroBatch& mb, Tensor y, Tensor dy) const {
  const int64_t rows = y.shape[0], chunk = chunk_rows(step.logits_chunk, rows, vocab_);
  const Tensor weight = step.params.value(weight_);
  Logits logits = make_logits(step, chunk);
  GradBuffer to;
  const bool trains = step.training && step.params.trains(weight_);
  if (trains) to = step.params.accumulate(weight_);
  MatmulArgs project;
  project.trans_b = true;
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const Tensor x = y.narrow(first, n), out = logits.values.narrow(0, n);
    summa_inner(step, out, x, weight, project);
    const Tensor grad = step.training ? logits.gradient.narrow(0, n) : Tensor();
    chunk_loss(step, mb, out, mb.targets.narrow(first, n), first, grad);
    if (!step.training) continue;
    summa_outer(step, dy.narrow(first, n), grad, weight);
    if (trains) summa_weight(step, {to.tensor, to.accumulate || first > 0}, grad, x, /*swapped=*/false);
  }
  release_logits(step, logits);
  if (step.training) weight_done(step);
}

}  // namespace ltrain
