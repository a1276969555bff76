// Families of models that a device cannot run.
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void family_device_rules(const Recipe& r, const BrokenRule& broken) {
  if (device_of(r) != DeviceKind::cuda) return;
  const ModelConfig& m = r.model;
  const auto refuse = [&](const char* what) {
    broken(
        "model.architecture",
        fmt::format("{} has {}, which this build does not compute on a GPU; nearest valid value: device: cpu",
                    m.family->name, what),
        {"device"});
  };
  if (m.attn_logit_softcapping || m.final_logit_softcapping) return refuse("soft-caps of scores or logits");
  if (m.traits().norm_scales_by_one_more || m.traits().scaled_embedding ||
      m.traits().feed_forward == FeedForward::geglu)
    return refuse("norms that scale by 1 + weight, a scaled embedding or GeGLU");
  if (m.attention_scale() != 0) return refuse("a scale of scores other than 1 / sqrt(head_dim)");
}

}  // namespace ltrain::recipe
