// Rules of training with a teacher.
#include "base/error.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void distillation_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.distillation.teacher) return;
  const auto refuse = [&](bool is, const char* key, const char* nearest, const char* why = "") {
    if (is)
      broken(key,
             fmt::format("distillation.teacher does not support it{}; nearest valid value: {}", why, nearest),
             {"distillation.teacher"});
  };
  refuse(r.parallel.pipeline > 1, "parallel.pipeline", "1",
         ", because the teacher would run on the last stage alone");
  refuse(r.parallel.tensor > 1 && r.parallel.tensor_mode != TensorModeChoice::one_d, "parallel.tensor_mode",
         "1d");
  refuse(r.model.num_nextn_predict_layers > 0, "model.num_nextn_predict_layers", "0");
  refuse(r.train.z_loss_coeff > 0, "train.z_loss_coeff", "0");
  refuse(r.optimizer.uses(UpdateRule::sophia), "optimizer.kind", "adamw");
}

}  // namespace ltrain::recipe
