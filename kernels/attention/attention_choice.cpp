#include "kernels/attention/attention_choice.h"

#include <cstdlib>

#include "base/error.h"

namespace ltrain {
namespace {

constexpr AttentionKernel kFastestFirst[] = {AttentionKernel::wgmma, AttentionKernel::mma,
                                             AttentionKernel::base};

/// Value of LTRAIN_ATTENTION, or null if unset or empty.
const char* asked() {
  const char* value = std::getenv("LTRAIN_ATTENTION");
  return value && *value ? value : nullptr;
}

}  // namespace

std::string_view attention_name(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::base:
      return "base";
    case AttentionKernel::mma:
      return "mma";
    case AttentionKernel::wgmma:
      return "wgmma";
  }
  fail(ExitCode::internal, "attention kernel {}", static_cast<int>(kernel));
}

std::string_view attention_obstacle(AttentionKernel kernel, const AttentionTraits& t) {
  if (kernel == AttentionKernel::base) return t.head_dim > 256 ? "head dims up to 256 only" : "";
  const bool narrow = t.value_dim > 0 && t.value_dim != t.head_dim;
  if (!is_half(t.type)) return "bf16 and fp16 only";
  if (!t.aligned) return "rows that begin at multiples of 16 bytes only";
  if (kernel == AttentionKernel::mma) {
    if (t.dropout && t.soft_cap) return "no dropout of probabilities of soft-capped scores";
    if (t.head_dim > 256) return "head dims up to 256 only";
    if (t.head_dim % 8 != 0 || t.head_dim < 32 ||
        (narrow && (t.value_dim % 8 != 0 || t.value_dim > t.head_dim)))
      return "head dims that are multiples of 8 from 32 on, and values of multiples of 8, only";
    return "";
  }
  if (t.capability != 90) return "GPUs of compute capability 9.0 (H100, H200) only";
  if (narrow) return "values as wide as keys only";
  if (t.head_dim != 64 && t.head_dim != 128) return "head dims 64 and 128 only";
  if (t.dropout) return "no dropout of probabilities";
  if (t.soft_cap) return "no soft-cap of scores";
  return t.even_runs ? "" : "runs of positions of one length only";
}

bool attention_is_forced() { return asked(); }

AttentionKernel choose_attention(const AttentionTraits& traits) {
  if (const char* name = asked()) {
    for (AttentionKernel kernel : kFastestFirst) {
      if (attention_name(kernel) != name) continue;
      if (const std::string_view why = attention_obstacle(kernel, traits); !why.empty())
        fail(ExitCode::usage, "LTRAIN_ATTENTION={}: attention of {} with head dim {}: {}", name,
             dtype_name(traits.type), traits.head_dim, why);
      return kernel;
    }
    fail(ExitCode::usage, "LTRAIN_ATTENTION={}: base, mma or wgmma", name);
  }
  for (AttentionKernel kernel : kFastestFirst)
    if (attention_obstacle(kernel, traits).empty()) return kernel;
  fail(ExitCode::usage, "attention of head dim {}: at most 256 on a GPU", traits.head_dim);
}

}  // namespace ltrain
