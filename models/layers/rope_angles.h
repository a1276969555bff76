// Angles of rotary position embeddings, by transformers' rope_type: linear (arXiv:2306.15595), llama3
// (arXiv:2407.21783), YaRN (arXiv:2309.00071) and LongRoPE (arXiv:2402.13753).
#pragma once
#include <cstdint>
#include <vector>

#include "models/layers/model_config.h"

namespace ltrain {

/// Of each pair of channels that rotate, in radians a position: rotary_dim / 2. `seq`: tokens of the longest
/// sequence, by which longrope takes its short factors or its long ones.
std::vector<double> rope_frequencies(const ModelConfig& config, int64_t seq);

/// Tokens of the longest sequence that has other angles than one of `seq` tokens; 0: there is none.
int64_t rope_switch(const ModelConfig& config, int64_t seq);

/// What rope_scaling.factor is where longrope is not given one: positions for each of the original ones.
double longrope_factor(const ModelConfig& config);

/// What cosine and sine are multiplied by.
double rope_attention_factor(const ModelConfig& config);

/// Of layers that rotate by rope_local_base_freq: as others by that base, without scaling.
ModelConfig local_rotation(const ModelConfig& config);

/// (seq, rotary_dim / 2, 2): cosine, sine.
std::vector<float> rope_angles(const ModelConfig& config, int64_t seq);

}  // namespace ltrain
