// Angles of rotary position embeddings, by transformers' rope_type: linear (arXiv:2306.15595), llama3
// (arXiv:2407.21783) and YaRN (arXiv:2309.00071).
#pragma once
#include <cstdint>
#include <vector>

#include "models/layers/model_config.h"

namespace ltrain {

/// Of each pair of channels, in radians a position: head_dim / 2.
std::vector<double> rope_frequencies(const ModelConfig& config);

/// What cosine and sine are multiplied by.
double rope_attention_factor(const ModelConfig& config);

/// (seq, head_dim / 2, 2): cosine, sine.
std::vector<float> rope_angles(const ModelConfig& config, int64_t seq);

}  // namespace ltrain
