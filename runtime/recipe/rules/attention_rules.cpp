// Rules of attention: limits of cuDNN and of the GPU kernels.
#include "kernels/attention/attention_cudnn.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void attention_rules(const Recipe& r, const BrokenRule& broken) {
  if (r.attention_backend != AttentionBackend::cudnn) return;
  const auto refuse = [&](const std::string& why, const std::string& key) {
    broken("attention_backend", why + "; nearest valid value: auto", {key});
  };
  if (r.device == DeviceChoice::cpu) refuse("device: cpu has no cuDNN", "device");
  const bool half_types =
      r.precision == Precision::bf16 || r.precision == Precision::fp16 || r.precision == Precision::fp8;
  if (!half_types)
    refuse(fmt::format("cuDNN's attention is of bf16 and fp16, and precision is {}", to_string(r.precision)),
           "precision");
  if (const std::string why =
          cudnn_declines(DType::bf16, r.model.head_dim, false, false, 0, false, r.model.value_dim());
      !why.empty())
    refuse(why, "model.head_dim");
  if (r.model.attn_pdrop > 0)
    refuse("model.attn_pdrop: " + cudnn_declines(DType::bf16, 64, true, false, 0), "model.attn_pdrop");
  if (r.data.reset_attention_mask)
    refuse("data.reset_attention_mask: " + cudnn_declines(DType::bf16, 64, false, true, 0),
           "data.reset_attention_mask");
  if (const int64_t window = widest_window(r.model); window > 0)
    refuse("model.sliding_window: " + cudnn_declines(DType::bf16, 64, false, false, window),
           "model.sliding_window");
  if (r.model.attn_logit_softcapping.value_or(0) > 0)
    refuse("model.attn_logit_softcapping: " + cudnn_declines(DType::bf16, 64, false, false, 0, true),
           "model.attn_logit_softcapping");
  if (r.parallel.context > 1 && r.parallel.context_comm != ContextComm::a2a)
    refuse(fmt::format("parallel.context_comm: {} parts queries from keys", r.parallel.context_comm),
           "parallel.context_comm");
}

void attention_device_rules(const Recipe& r, const BrokenRule& broken) {
  constexpr int64_t kMost = 256;  // kernels/attention/attention_choice.cpp
  if (device_of(r) != DeviceKind::cuda || r.model.head_dim <= kMost) return;
  broken("model.head_dim",
         fmt::format("attention on a GPU takes head dims up to {0}; nearest valid value: {0}", kMost),
         {"device"});
}

}  // namespace ltrain::recipe
