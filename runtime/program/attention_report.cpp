#include "runtime/program/attention_report.h"

#include "kernels/attention/attention_check.h"
#include "kernels/attention/attention_choice.h"
#include "kernels/attention/attention_cudnn.h"
#include "runtime/program/train_program.h"

namespace ltrain {
namespace {

DType type_of(const Recipe& r) { return precision_policy(std::string(to_string(r.precision))).compute; }

AttentionTraits traits_of(const Recipe& r, DType type, int capability) {
  AttentionTraits traits;
  traits.type = type, traits.head_dim = r.model.head_dim, traits.value_dim = r.model.value_dim();
  traits.capability = capability;
  traits.dropout = r.model.attn_pdrop > 0;
  traits.soft_cap = r.model.attn_logit_softcapping.value_or(0) > 0;
  return traits;
}

/// `why_not_wgmma`: reason from the comparison on this GPU; empty: wgmma is usable, or was not compared.
std::string native_kernels(const Recipe& r, DType type, int capability,
                           const std::string& why_not_wgmma = "") {
  const AttentionTraits traits = traits_of(r, type, capability);
  switch (choose_attention(traits)) {
    case AttentionKernel::wgmma:
      if (!why_not_wgmma.empty())
        return fmt::format(
            "native kernels, on tensor cores (mma); those for Hopper (wgmma) are not used, because {}",
            why_not_wgmma);
      return "native kernels, on Hopper's tensor cores (wgmma)";
    case AttentionKernel::mma:
      return "native kernels, on tensor cores (mma)";
    case AttentionKernel::base:
      break;
  }
  const std::string values =
      traits.value_dim == traits.head_dim ? "" : fmt::format(" and values of {}", traits.value_dim);
  return fmt::format("native kernels, in plain arithmetic, for {} with head dim {}{}", dtype_name(type),
                     r.model.head_dim, values);
}

/// A deterministic backward uses the native kernels, unless the recipe requests cuDNN by name.
bool own_backward(const Recipe& r) {
  return r.deterministic && r.attention_backend != AttentionBackend::cudnn;
}

std::string why_not_wgmma(const Recipe& r, int capability, Stream& compute) {
  const DType type = type_of(r);
  if (choose_attention(traits_of(r, type, capability)) != AttentionKernel::wgmma) return "";
  const std::string why = wgmma_unusable(compute, type, r.model.head_dim);
  if (!why.empty() && attention_is_forced())
    fail(ExitCode::usage,
         "LTRAIN_ATTENTION=wgmma: these kernels are not used, because {}; LTRAIN_ATTENTION=mma works", why);
  return why;
}

}  // namespace

std::string cudnn_declines(const Recipe& r) {
  // cuDNN can run a layer without a window even if other layers have one.
  int64_t narrowest = r.model.window(0);
  for (int64_t i = 1; i < r.model.num_hidden_layers; ++i) narrowest = std::min(narrowest, r.model.window(i));
  std::string why =
      cudnn_declines(type_of(r), r.model.head_dim, r.model.attn_pdrop > 0, r.data.reset_attention_mask,
                     narrowest, r.model.attn_logit_softcapping.value_or(0) > 0, r.model.value_dim());
  if (why.empty() && r.parallel.context > 1 && r.parallel.context_comm != ContextComm::a2a)
    why = fmt::format("parallel.context_comm: {} parts queries from keys", r.parallel.context_comm);
  return why;
}

std::string planned_attention(const Recipe& r, int capability) {
  if (capability < 80)
    return fmt::format(
        "none: the card has compute capability {}.{}, and this program's kernels are of 8.0 on",
        capability / 10, capability % 10);
  const std::string own = native_kernels(r, type_of(r), capability);
  if (r.attention_backend == AttentionBackend::own) return own;
  const std::string why = cudnn_declines(r);
  if (!why.empty()) return fmt::format("{}; not cuDNN: {}", own, why);
  return fmt::format("{}; at the start {} compared with cuDNN's, which go first where they agree", own,
                     own_backward(r) ? "the forward ones are" : "they are");
}

void try_attention_kernels(const Recipe& r, int capability, Stream& compute) {
  why_not_wgmma(r, capability, compute);
}

std::string attention_report(const Recipe& r, int capability, Stream& compute) {
  const DType type = type_of(r);
  const std::string own = native_kernels(r, type, capability, why_not_wgmma(r, capability, compute));
  if (r.attention_backend == AttentionBackend::own) return own;
  AttentionShape shape;
  shape.heads = r.model.num_attention_heads, shape.kv_heads = r.model.num_key_value_heads;
  shape.head_dim = r.model.head_dim, shape.value_dim = r.model.value_dim(), shape.seq = r.data.seq_length;
  std::string why = cudnn_declines(r);
  if (why.empty()) why = cudnn_unusable(compute, type, shape, CudnnPass::forward);
  if (!why.empty()) {
    if (r.attention_backend == AttentionBackend::cudnn)
      fail(ExitCode::usage, "attention_backend: cudnn: {}; nearest valid value: auto", why);
    return fmt::format("{}; not cuDNN: {}", own, why);
  }
  const std::string some = widest_window(r.model) > 0 ? " in layers without a window" : "";
  const std::string forward = fmt::format("cuDNN {}{}", cudnn_version(), some);
  if (own_backward(r))
    return fmt::format("{} forward; backward by {}, which are deterministic", forward, own);
  why = cudnn_unusable(compute, type, shape,
                       r.deterministic ? CudnnPass::deterministic_backward : CudnnPass::backward);
  if (why.empty())
    return fmt::format("{}, forward and{} backward", forward, r.deterministic ? " deterministic" : "");
  if (r.attention_backend == AttentionBackend::cudnn)
    fail(ExitCode::usage, "attention_backend: cudnn: {}; nearest valid value: auto", why);
  return fmt::format("{} forward; backward by {}: {}", forward, own, why);
}

}  // namespace ltrain
