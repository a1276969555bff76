// Rules of training with a teacher.
#include "base/error.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {
namespace {

/// Rules of recorded logits alone.
void recorded_logits_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.distillation.logits) return;
  if (r.distillation.teacher)
    broken("distillation.teacher", "distillation.logits has its logits already; keep one of the two keys",
           {"distillation.logits"});
  if (r.distillation.top_k > r.model.vocab_size)
    broken("distillation.top_k",
           fmt::format("there are {} logits of a token (model.vocab_size); nearest valid value: {}",
                       r.model.vocab_size, r.model.vocab_size),
           {"model.vocab_size"});
  const auto refuse = [&](bool is, const char* key, const char* rule) {
    if (is) broken(key, rule, {"distillation.logits"});
  };
  refuse(
      !r.data.stages.empty(), "data.stages",
      "distillation.logits does not support it, because logits are recorded for data.train; remove the key");
  refuse(r.data.shuffle_window > 0, "data.shuffle_window",
         "distillation.logits does not support it, because a source's logits are one file; nearest valid "
         "value: 0");
  refuse(r.data.train_seq_length.has_value(), "data.train_seq_length",
         "distillation.logits does not support it, because logits are recorded for data.seq_length; remove "
         "the key");
}

}  // namespace

void distillation_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.distillation.on()) return;
  const char* on = r.distillation.teacher ? "distillation.teacher" : "distillation.logits";
  const auto refuse = [&](bool is, const char* key, const char* nearest, const char* why = "") {
    if (is)
      broken(key, fmt::format("{} does not support it{}; nearest valid value: {}", on, why, nearest), {on});
  };
  refuse(r.distillation.teacher && r.parallel.pipeline > 1, "parallel.pipeline", "1",
         ", because the teacher would run on the last stage alone");
  refuse(r.parallel.tensor > 1 && r.parallel.tensor_mode != TensorModeChoice::one_d, "parallel.tensor_mode",
         "1d");
  refuse(r.model.num_nextn_predict_layers > 0, "model.num_nextn_predict_layers", "0");
  refuse(r.train.z_loss_coeff > 0, "train.z_loss_coeff", "0");
  refuse(r.optimizer.uses(UpdateRule::sophia), "optimizer.kind", "adamw");
  recorded_logits_rules(r, broken);
}

}  // namespace ltrain::recipe
