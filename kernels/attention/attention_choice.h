// Which of the kernels of attention a GPU runs. The one place where that is decided.
#pragma once
#include <string_view>

#include "kernels/attention/attention.h"

namespace ltrain {

enum class AttentionKernel {
  base,   ///< plain arithmetic, any type and any head dim up to 256 (attention_cuda.cu)
  mma,    ///< tensor cores of any card since A100 (attention_mma.h)
  wgmma,  ///< those of Hopper, as Hopper wants them used (attention_wgmma.h)
};

/// What the choice hangs on.
struct AttentionTraits {
  DType type = DType::f32;
  int64_t head_dim = 0;
  int capability = 0;  ///< of the GPU: 90 for sm_90
  bool dropout = false;
  bool soft_cap = false;  ///< scores are soft-capped
  bool aligned = true;    ///< all rows begin at multiples of 16 bytes; so they do in every tensor of a layer
  bool even_runs = true;  ///< positions are one run, or two of one length
  int64_t value_dim = 0;  ///< channels of a value; 0: head_dim
};

std::string_view attention_name(AttentionKernel kernel);
/// Empty where the kernel can do it; else what stands against it.
std::string_view attention_obstacle(AttentionKernel kernel, const AttentionTraits& traits);
/// The fastest that can, or what LTRAIN_ATTENTION (base, mma, wgmma) asks for; fails where that one cannot.
AttentionKernel choose_attention(const AttentionTraits& traits);
/// Whether LTRAIN_ATTENTION says which.
bool attention_is_forced();

}  // namespace ltrain
