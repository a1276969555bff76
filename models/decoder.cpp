#include "models/decoder.h"

#include <cmath>
#include <cstring>

#include "kernels/ops/embedding.h"

namespace ltrain {

std::vector<float> rope_angles(const ModelConfig& c, int64_t seq) {
  const int64_t half = c.head_dim / 2;
  std::vector<double> frequency(half);
  for (int64_t i = 0; i < half; ++i) {
    double f = std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim));
    const RopeScaling& r = c.rope_scaling;
    if (r.factor != 1.0) {  // rope_type llama3 of transformers
      const double wavelength = 2 * M_PI / f, old = static_cast<double>(r.original_max_position_embeddings);
      const double low = old / r.low_freq_factor, high = old / r.high_freq_factor;
      if (wavelength > low) {
        f /= r.factor;
      } else if (wavelength >= high) {
        const double smooth =
            (old / wavelength - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
        f = (1 - smooth) * f / r.factor + smooth * f;
      }
    }
    frequency[i] = f;
  }
  std::vector<float> table(seq * c.head_dim);
  for (int64_t t = 0; t < seq; ++t)
    for (int64_t i = 0; i < half; ++i) {
      table[t * c.head_dim + 2 * i] = static_cast<float>(std::cos(t * frequency[i]));
      table[t * c.head_dim + 2 * i + 1] = static_cast<float>(std::sin(t * frequency[i]));
    }
  return table;
}

Decoder::Decoder(const ModelConfig& config, ParameterStore& store, bool decay_embeddings)
    : config_(config), blocks_(config.num_hidden_layers) {
  const ModelConfig& c = config_;
  const bool gpt2 = c.architecture == "gpt2";
  tokens_ = store.add({{gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight",
                        {c.vocab_size, c.hidden_size},
                        Init::normal,
                        c.initializer_range,
                        decay_embeddings}});
  if (gpt2)
    positions_ = store.add({{"transformer.wpe.weight",
                             {c.max_position_embeddings, c.hidden_size},
                             Init::normal,
                             c.initializer_range,
                             decay_embeddings}});
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) blocks_[i].declare(store, c, i);
  head_.declare(store, c, tokens_);
}

void Decoder::allocate(Stream& compute, Memory& memory, int64_t seq) {
  if (config_.architecture == "gpt2") return;
  rope_table_ =
      memory.allocate(MemoryKind::temporaries, "rope angles", DType::f32, {seq, config_.head_dim / 2, 2});
  if (compute.meta()) return;
  compute.launch([table = rope_table_, angles = rope_angles(config_, seq)] {
    std::memcpy(table.data, angles.data(), angles.size() * sizeof(float));
  });
}

void Decoder::embed(Step& step, const MicroBatch& mb, Residual& r) const {
  step.enter("embedding");
  r.x = step.activation("embedding", {mb.rows(), config_.hidden_size});
  embedding_forward(step.compute, r.x, mb.tokens, step.params.value(tokens_),
                    positions_ >= 0 ? step.params.value(positions_) : Tensor(), mb.seq);
  if (const Dropout d = step.dropout(config_.embd_pdrop, "embedding", mb); d.on())
    dropout(step.compute, r.x, r.x, d);
}

void Decoder::embed_backward(Step& step, const MicroBatch& mb, Tensor dx) const {
  step.enter("embedding");
  if (const Dropout d = step.dropout(config_.embd_pdrop, "embedding", mb); d.on())
    dropout(step.compute, dx, dx, d);
  // A tied head has written the gradient of the table before.
  embedding_backward(step.compute, step.params.grad(tokens_), dx, mb.tokens,
                     step.params.accumulating() || config_.tie_word_embeddings);
  step.params.grad_ready(tokens_);
  if (positions_ >= 0) {
    position_backward(step.compute, step.params.grad(positions_), dx, mb.seq, step.params.accumulating());
    step.params.grad_ready(positions_);
  }
}

void Decoder::train(Step& step, const MicroBatch& mb) const {
  Residual r;
  std::vector<Block::Saved> saved(blocks_.size());
  embed(step, mb, r);
  for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].forward(step, mb, r, rope_table_, saved[i]);
  Tensor dx = head_.loss(step, mb, r);
  for (size_t i = blocks_.size(); i-- > 0;) blocks_[i].backward(step, mb, dx, rope_table_, saved[i]);
  embed_backward(step, mb, dx);
  step.release(dx);
}

void Decoder::evaluate(Step& step, const MicroBatch& mb) const {
  Residual r;
  embed(step, mb, r);
  for (const Block& block : blocks_) {
    Block::Saved saved;
    block.forward(step, mb, r, rope_table_, saved);
  }
  head_.loss(step, mb, r);
}

void Decoder::predict(Step& step, const MicroBatch& mb, Tensor logits, int64_t first_row) const {
  Residual r;
  embed(step, mb, r);
  for (const Block& block : blocks_) {
    Block::Saved saved;
    block.forward(step, mb, r, rope_table_, saved);
  }
  head_.logits(step, r, logits, first_row);
}

}  // namespace ltrain
