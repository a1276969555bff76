// The models of scripts/golden/make-golden.py: weights, tokens and settings that PyTorch trained with.
#pragma once
#include <catch2/catch.hpp>

#include "kernels/optimizer/adamw.h"
#include "models/layers/model_config.h"
#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/safetensors.h"

namespace ltrain::test {

inline constexpr int64_t kGoldenBatch = 4, kGoldenSeq = 16;

struct Golden {
  SafetensorsFile file;
  ModelConfig model;
  OptimizerStep adamw;
  double clip = 0;

  explicit Golden(const std::string& name)
      : file(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/torch_" + name + ".safetensors") {
    const auto number = [&](const char* key) { return std::stod(file.metadata().at(key)); };
    const auto whole = [&](const char* key) { return static_cast<int64_t>(number(key)); };
    model.family = &family_of(file.metadata().at("architecture"));
    model.vocab_size = whole("vocab_size");
    model.hidden_size = whole("hidden_size");
    model.intermediate_size = whole("intermediate_size");
    model.num_hidden_layers = whole("num_hidden_layers");
    model.num_attention_heads = whole("num_attention_heads");
    model.num_key_value_heads = whole("num_key_value_heads");
    model.head_dim = whole("head_dim");
    model.max_position_embeddings = whole("max_position_embeddings");
    model.rope_theta = number("rope_theta");
    RopeScaling& scaling = model.rope_scaling;
    scaling.factor = number("rope_factor");
    scaling.type = scaling.factor == 1 ? RopeType::none : RopeType::llama3;
    scaling.low_freq_factor = number("rope_low_freq");
    scaling.high_freq_factor = number("rope_high_freq");
    scaling.original_max_position_embeddings = whole("rope_original");
    model.norm_eps = number("norm_eps");
    model.tie_word_embeddings = whole("tie_word_embeddings") != 0;
    adamw.weight_decay = number("weight_decay");
    adamw.beta1 = number("beta1");
    adamw.beta2 = number("beta2");
    adamw.eps = number("eps");
    clip = number("clip_grad");
  }
  template <class T>
  std::vector<T> read(const std::string& name) const {
    const SafetensorsEntry* e = file.find(name);
    LT_CHECK(e && e->dtype == safetensors_dtype(dtype_of<T>::value), "{}", name);
    std::vector<T> out((e->end - e->begin) / sizeof(T));
    file.read(*e, 0, e->end - e->begin, out.data());
    return out;
  }
};

/// Begin of a parameter in its named tensor: gpt2's q, k and v are runs of its rows.
inline int64_t first_element(const ParameterStore& store, int id) {
  return Runs(store.spec(id).slice).next().global;
}

/// Gives every parameter its part of the weights; T is what the store computes in.
template <class T>
void set_weights(const Golden& g, ParameterStore& store) {
  for (int id = 0; id < store.count(); ++id) {
    const auto w = g.read<bf16>("weight." + store.spec(id).name);
    Tensor value = store.value(id);
    Runs runs(store.spec(id).slice);
    for (Run r = runs.next(); r.count > 0; r = runs.next())
      for (int64_t i = 0; i < r.count; ++i)
        value.ptr<T>()[r.local + i] =
            static_cast<T>(static_cast<float>(w.at(static_cast<size_t>(r.global + i))));
  }
}

/// Rows [row, row + rows) of the tokens of a step.
inline void append_rows(const std::vector<int32_t>& all, int64_t step, int64_t row, int64_t rows,
                        std::vector<int32_t>& to) {
  const auto from = all.begin() + (step * kGoldenBatch + row) * kGoldenSeq;
  to.insert(to.end(), from, from + rows * kGoldenSeq);
}

}  // namespace ltrain::test
