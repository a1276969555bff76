// Common part of Gemma 2 and 3.
#pragma once
#include "models/families/llama_like.h"

namespace ltrain {

/// Defaults of transformers' class.
std::vector<HfKey> gemma_like_keys(const LlamaLikeKeys& defaults, int64_t sliding_window);
/// Norms around sublayers that scale by 1 + weight, GeGLU, a scaled embedding, windows, a scale of scores.
Family gemma_like_family();

}  // namespace ltrain
