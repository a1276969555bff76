// What a model is: Hugging Face's config names. Filled by runtime/recipe, read by models/.
#pragma once
#include <cstdint>
#include <string>

namespace ltrain {

/// RoPE scaling of Llama 3 (transformers `rope_scaling`, rope_type llama3). factor 1 means none.
struct RopeScaling {
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

struct ModelConfig {
  std::string architecture = "llama";  ///< gpt2 | llama
  int64_t vocab_size = 256;
  int64_t hidden_size = 256;
  int64_t intermediate_size = 1024;  ///< gpt2: 4 * hidden_size
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t head_dim = 64;
  int64_t max_position_embeddings = 2048;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double norm_eps = 1e-5;  ///< rms_norm_eps or layer_norm_epsilon
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  double embd_pdrop = 0.0;   ///< dropout after the embeddings
  double attn_pdrop = 0.0;   ///< dropout of attention probabilities
  double resid_pdrop = 0.0;  ///< dropout before each residual addition
};

}  // namespace ltrain
