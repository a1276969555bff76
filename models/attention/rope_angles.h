// Angles of rotary position embeddings for transformers' rope_types: linear (arXiv:2306.15595), llama3
// (arXiv:2407.21783), YaRN (arXiv:2309.00071) and LongRoPE (arXiv:2402.13753).
#pragma once
#include <cstdint>
#include <vector>

#include "models/layers/model_config.h"

namespace ltrain {

/// Frequency of each rotary pair of channels, in radians for each position: rotary_dim / 2. `seq`: length of
/// the longest sequence, which selects longrope's short or long factors.
std::vector<double> rope_frequencies(const ModelConfig& config, int64_t seq);

/// Longest sequence, in tokens, with other angles than a sequence of `seq` tokens; 0: none.
int64_t rope_switch(const ModelConfig& config, int64_t seq);

/// Default of rope_scaling.factor for longrope: max positions / original positions.
double longrope_factor(const ModelConfig& config);

/// Factor of cosine and sine.
double rope_attention_factor(const ModelConfig& config);

/// Configuration of layers that rotate by rope_local_base_freq: that base, without scaling.
ModelConfig local_rotation(const ModelConfig& config);

/// (seq, rotary_dim / 2, 2): cosine, sine.
std::vector<float> rope_angles(const ModelConfig& config, int64_t seq);

}  // namespace ltrain
