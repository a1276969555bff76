// Choice of the attention kernel on a GPU. No other file decides it.
#pragma once
#include <string_view>

#include "kernels/attention/attention.h"

namespace ltrain {

enum class AttentionKernel {
  base,   ///< plain arithmetic, any type and any head dim up to 256 (attention_cuda.cu)
  mma,    ///< tensor cores, A100 and later (attention_mma.h)
  wgmma,  ///< Hopper's tensor cores with wgmma and bulk copies (attention_wgmma.h)
};

/// Inputs of the choice.
struct AttentionTraits {
  DType type = DType::f32;
  int64_t head_dim = 0;
  int capability = 0;  ///< compute capability of the GPU: 90 for sm_90
  bool dropout = false;
  bool soft_cap = false;  ///< scores are soft-capped
  bool aligned = true;  ///< all rows begin at multiples of 16 bytes, which is true of every tensor of a layer
  bool even_runs = true;  ///< positions are one run, or two runs of equal length
  int64_t value_dim = 0;  ///< channels of a value; 0: head_dim
};

std::string_view attention_name(AttentionKernel kernel);
/// Empty if the kernel supports the traits, else the reason why it does not.
std::string_view attention_obstacle(AttentionKernel kernel, const AttentionTraits& traits);
/// The fastest kernel that supports the traits, or the kernel that LTRAIN_ATTENTION (base, mma, wgmma) names.
/// Throws if that kernel does not support them.
AttentionKernel choose_attention(const AttentionTraits& traits);
/// True if LTRAIN_ATTENTION names a kernel.
bool attention_is_forced();

}  // namespace ltrain
