// The output layer in FP8 (fp8.output_layer).
#include "models/layers/head.h"

namespace ltrain {

void Head::quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int slot,
                             std::vector<Fp8Weight>& weights) {
  if (scores_texts_ || keeps_type(settings, store.spec(weight_).name)) return;
  const Shape& shape = store.spec(weight_).shape;
  fp8_ = {.slot = slot, .rows = shape[0], .cols = shape[1]};
  fp8_settings_ = settings;
  weights.push_back(fp8_);
}

int64_t Head::fp8_chunk_multiple(const Fp8Settings& settings) {
  return settings.recipe == Fp8Recipe::blockwise ? kFp8Block : kFp8Aligned;
}

int64_t Head::line_chunk_rows(const Step& step, int64_t rows) const {
  if (!multiplies_fp8(step)) return chunk_rows(step.logits_chunk, rows, vocab_);
  // With tensorwise scaling a chunk is rounded by its own largest magnitudes: chunks may not depend on the
  // number of ranks that share the vocabulary.
  const bool tensorwise = fp8_settings_.recipe == Fp8Recipe::tensorwise;
  return chunk_rows(step.logits_chunk, rows, tensorwise ? whole_vocab_ : vocab_,
                    fp8_chunk_multiple(fp8_settings_));
}

void Head::product(Step& step, Tensor out, Tensor a, Tensor b, const MatmulArgs& args) const {
  multiplies_fp8(step) ? step.fp8->multiply_linear(step, fp8_.slot, out, a, b, args)
                       : matmul(step.compute, out, a, b, args);
}

}  // namespace ltrain
