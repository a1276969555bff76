// Keys of LoRA, with PEFT's names.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {

void add_lora_keys(std::vector<Key>& t) {
  t.push_back(
      integer("lora.r", LT_MEMBER(model.lora.rank),
              "Rank of the trained factors A and B of each adapted matrix. 0: no LoRA, all parameters train.")
          .between(0, 4096)
          .alias({"lora_r", "lora_rank"}));
  const auto with_rank = [&t](Key key) {
    key.when("lora.r above 0", true, [](const Recipe& r) { return r.model.lora.on(); });
    t.push_back(std::move(key));
  };
  with_rank(number("lora.alpha", LT_MEMBER(model.lora.alpha),
                   "Adapters are multiplied by alpha / r. Twice the rank is usual.")
                .above(0)
                .alias({"lora_alpha"}));
  with_rank(truth("lora.use_rslora", LT_MEMBER(model.lora.use_rslora),
                  "Adapters are multiplied by alpha / sqrt(r) instead (arXiv:2312.03732)."));
  with_rank(texts(
      "lora.target_modules", LT_MEMBER(model.lora.target_modules), "module", "[q_proj, v_proj]",
      "Linear layers with adapters: the last part of their names, patterns of whole names with * and ?, or "
      "all-linear for those of attention and feed-forward. Experts have no adapters."));
  with_rank(text("lora.adapter", LT_MEMBER(checkpoint.adapter),
                 "Folder of PEFT (adapter_config.json) whose adapters a fresh run begins with. null: B is "
                 "zero, so that "
                 "the run begins with the model itself.")
                .changes(Effect::nothing));
  with_rank(texts("lora.modules_to_save", LT_MEMBER(model.lora.modules_to_save), "module",
                  "[lm_head, embed_tokens]",
                  "Modules beside the adapters that train, whole; all others are frozen."));
}

}  // namespace ltrain::recipe
