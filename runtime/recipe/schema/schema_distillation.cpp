// Keys of distillation.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {

void add_distillation_keys(std::vector<Key>& t) {
  const auto on = [](const Recipe& r) { return r.distillation.on(); };
  const char* any = "distillation.teacher or distillation.logits";
  t.push_back(
      text("distillation.teacher", LT_MEMBER(distillation.teacher),
           "Trains on the distribution of this frozen model beside the labels: a Hugging Face folder, "
           "a checkpoint, or the output_dir of a run. It may have another size and architecture, and "
           "has the vocabulary of the model.")
          .alias({"teacher_model_name_or_path"})
          .when("task: pretrain or sft", true, [](const Recipe& r) { return !trains_preferences(r.task); }));
  t.push_back(
      text("distillation.logits", LT_MEMBER(distillation.logits),
           "The same from a folder of the teacher's largest logits, which `ltrain eval TEACHER "
           "--record-logits "
           "RECIPE` writes there before, so that no teacher stays in memory.")
          .when("task: pretrain or sft", true, [](const Recipe& r) { return !trains_preferences(r.task); }));
  t.push_back(integer("distillation.top_k", LT_MEMBER(distillation.top_k),
                      "Recorded logits of each token. All other tokens are one bucket of the divergence.")
                  .between(1, kMaxDim)
                  .when("distillation.logits", true,
                        [](const Recipe& r) { return r.distillation.logits.has_value(); }));
  t.push_back(
      number(
          "distillation.kd_ratio", LT_MEMBER(distillation.kd_ratio),
          "Weight of temperature^2 * KL(teacher || student) in the loss; the labels' cross-entropy has 1 - "
          "kd_ratio.")
          .between(1e-6, 1)
          .when(any, true, on));
  t.push_back(number("distillation.temperature", LT_MEMBER(distillation.temperature),
                     "Both models' logits are divided by it in the divergence.")
                  .between(0.01, 100)
                  .when(any, true, on));
}

}  // namespace ltrain::recipe
