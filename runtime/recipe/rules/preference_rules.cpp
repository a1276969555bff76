// Rules of task: dpo, kto and reward.
#include <algorithm>

#include "base/error.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

static void reward_rules(const Recipe& r, const BrokenRule& broken) {
  if (r.model.family->hf_score_class.empty())
    broken(
        "model.architecture",
        fmt::format("task: reward supports {}",
                    fmt::join(family_names([](const Family& f) { return !f.hf_score_class.empty(); }), ", ")),
        {"task"});
  const std::string& score = r.model.names().score;
  const std::vector<std::string>& saved = r.model.lora.modules_to_save;
  if (r.model.lora.on() && std::none_of(saved.begin(), saved.end(), [&](const std::string& entry) {
        return LoraConfig::names_module(entry, score);
      }))
    broken(
        "lora.modules_to_save",
        fmt::format("has no {}, the new head of task: reward, which would stay random; nearest valid value: "
                    "[{}]",
                    score, score),
        {"task"});
}

/// The model without adapters must be the one that the run begins with.
static void adapters_off_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.preference.has_reference() || r.preference.reference != PreferenceReference::adapters_off) return;
  const LoraConfig& lora = r.model.lora;
  const auto refuse = [&](bool is, const char* key, std::string_view why) {
    if (is) broken("preference.reference", fmt::format("{}; nearest valid value: precomputed", why), {key});
  };
  refuse(!lora.on(), "lora.r", "needs LoRA: without adapters the reference would be the model that trains");
  refuse(!lora.modules_to_save.empty(), "lora.modules_to_save",
         "lora.modules_to_save train whole, so that the reference would change with them");
  refuse(lora.on() && lora.init == LoraInit::pissa, "lora.init",
         "lora.init = pissa takes the adapters out of the weights, so that they alone are another model");
  refuse(r.checkpoint.adapter.has_value(), "lora.adapter",
         "the run begins with the adapter of lora.adapter, and the reference would be the model without it");
}

/// Without reference_model, the resident model must be the one that the run begins with.
static void resident_rules(const Recipe& r, const BrokenRule& broken) {
  if (r.task == Task::reward || r.preference.reference != PreferenceReference::resident) return;
  const auto refuse = [&](bool is, const char* key, std::string_view why, const char* nearest) {
    if (is) broken("preference.reference", fmt::format("{}; nearest valid value: {}", why, nearest), {key});
  };
  refuse(!r.preference.has_reference(), "preference.loss",
         "the loss has no reference, and a model would stay in memory for nothing", "precomputed");
  if (r.preference.reference_model) return;
  refuse(r.model.lora.on() && r.model.lora.base == LoraBase::nf4, "lora.base",
         "lora.base = nf4 trains on quantised weights, and the model that stays in memory has those that "
         "they were made of",
         "adapters_off");
  refuse(
      r.checkpoint.adapter.has_value(), "lora.adapter",
      "the run begins with the adapter of lora.adapter, and the model that stays in memory would be the one "
      "without it; name a merged one as preference.reference_model",
      "precomputed");
}

/// The sums of a text must not depend on the texts beside it, nor on the pass; and a reference has routers of
/// its own.
static void routing_rules(const Recipe& r, const BrokenRule& broken) {
  const MoeConfig& m = r.model.moe;
  const auto refuse = [&](bool is, const char* key, std::string_view why, const char* nearest) {
    if (is)
      broken(key,
             fmt::format("task: {} does not support it{}; nearest valid value: {}", r.task, why, nearest),
             {"task"});
  };
  constexpr std::string_view kBeside = ", since the experts of a token would depend on the texts beside it";
  refuse(m.capacity_factor.has_value(), "model.moe.capacity_factor", kBeside, "null");
  refuse(!m.capacity_factor && m.eval_capacity_factor, "model.moe.eval_capacity_factor", kBeside, "null");
  refuse(m.selection == Selection::expert_choice, "model.moe.router.selection", kBeside, "top_k");
  constexpr std::string_view kRandom = ", since the reference would have other experts than the policy";
  refuse(m.selection == Selection::gshard_top2, "model.moe.router.selection", kRandom, "top_k");
  refuse(m.jitter_eps > 0, "model.moe.router.jitter_eps", kRandom, "0");
  if (r.preference.references_in_step() && r.model.has_correction_bias())
    broken("preference.reference",
           "the model has a bias of its routers, which moves as it trains, and the reference would have the "
           "moved "
           "one; nearest valid value: precomputed",
           {"model.architecture"});
}

void preference_rules(const Recipe& r, const BrokenRule& broken) {
  if (!trains_preferences(r.task)) return;
  const auto refuse = [&](bool is, const char* key, const char* nearest) {
    if (is)
      broken(key, fmt::format("task: {} does not support it; nearest valid value: {}", r.task, nearest),
             {"task"});
  };
  refuse(!r.data.reset_attention_mask, "data.reset_attention_mask", "true");
  refuse(!r.data.reset_position_ids, "data.reset_position_ids", "true");
  refuse(r.data.eod_mask_loss, "data.eod_mask_loss", "false");
  refuse(r.data.seq_length < 4, "data.seq_length", "4");
  refuse(r.parallel.tensor > 1 && r.parallel.tensor_mode != TensorModeChoice::one_d, "parallel.tensor_mode",
         "1d");
  refuse(r.model.num_nextn_predict_layers > 0, "model.num_nextn_predict_layers", "0");
  refuse(r.task == Task::reward && r.model.moe.num_experts > 0, "model.moe.num_experts", "0");
  if (r.task != Task::reward && r.model.moe.num_experts > 0) routing_rules(r, broken);
  refuse(r.train.z_loss_coeff > 0, "train.z_loss_coeff", "0");
  refuse(r.train.ema_decay > 0, "train.ema_decay", "0");
  refuse(computes_in(r, Precision::fp8), "precision", "bf16");
  refuse(r.cuda_graphs == OverlapChoice::on, "cuda_graphs", "auto");
  refuse(r.optimizer.uses(UpdateRule::sophia), "optimizer.kind", "adamw");
  refuse(r.checkpoint.load_path && r.checkpoint.load_parts != LoadParts::weights, "checkpoint.load.parts",
         "weights");
  if (r.task != Task::reward)
    refuse(r.preference.labelled() != (r.task == Task::kto), "preference.loss",
           r.task == Task::kto ? "kto" : "sigmoid");
  if (r.task == Task::reward) reward_rules(r, broken);
  adapters_off_rules(r, broken);
  resident_rules(r, broken);
  if (r.task == Task::kto && r.preference.desirable_weight == 0 && r.preference.undesirable_weight == 0)
    broken("preference.desirable_weight",
           "is 0 as preference.undesirable_weight is, so that no text counts; nearest valid value: 1",
           {"preference.undesirable_weight"});
}

}  // namespace ltrain::recipe
