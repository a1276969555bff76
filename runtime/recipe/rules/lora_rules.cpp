// Rules of LoRA. Names of modules are checked once the model is known (check_optimizer_of).
#include "base/error.h"
#include "models/moe/expert_adapters.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

/// Rules of frozen weights in NF4. Rows of full blocks are checked once the layout is known
/// (ParameterLayout).
static void nf4_rules(const Recipe& r, const BrokenRule& broken) {
  const auto refuse = [&](const char* key, const std::string& why) { broken("lora.base", why, {key}); };
  if (r.train.ema_decay > 0)
    refuse("train.ema_decay",
           "an average of weights has frozen ones too, in fp32; nearest valid value: train.ema_decay: 0");
  if (r.offload.params.on())
    refuse("offload.params.device",
           "frozen weights of 4 bits stay on the device; nearest valid value: offload.params.device: none");
  if (r.checkpoint.upcycle)
    refuse(
        "checkpoint.upcycle",
        "copies of a dense model's layers are not quantised; nearest valid value: checkpoint.upcycle: null");
  if (r.model.lora.dora && r.checkpoint.adapter)
    refuse("lora.adapter",
           "magnitudes of PEFT's files are of weights that are not quantised; nearest valid value: "
           "lora.adapter: null");
}

/// Rules of adapters that begin with singular vectors.
static void pissa_rules(const Recipe& r, const BrokenRule& broken) {
  const auto refuse = [&](const char* key, const std::string& why) { broken("lora.init", why, {key}); };
  if (!r.checkpoint.load_path || r.checkpoint.load_parts != LoadParts::weights)
    refuse(
        "checkpoint.load.path",
        "decomposes the weights that a run begins with; give model.from or checkpoint.load.path of a model");
  if (r.model.lora.dora)
    refuse("lora.dora",
           "magnitudes begin as norms of weights without their singular vectors; nearest valid value: "
           "lora.dora: false");
}

/// Fails if target_modules names some of a layer's experts, or gate without up: experts are one stack, and
/// PEFT has one pair of factors for gate and up of all of them.
static bool named_apart(const Recipe& r, int64_t layer, const NamedExperts& named, const BrokenRule& broken) {
  const int64_t all = r.model.moe.num_experts;
  const HfTensorLayout& hf = r.model.family->hf_layout;
  const auto refuse = [&](const std::string& rule) {
    broken("lora.target_modules",
           fmt::format("layer {}: {}; name them as in [{}, {}, {}]", layer, rule, hf.expert_gate,
                       hf.expert_up, hf.expert_down),
           {});
    return true;
  };
  for (const auto& [name, count] :
       {std::pair{hf.expert_gate, named.gate}, {hf.expert_up, named.up}, {hf.expert_down, named.down}})
    if (count != 0 && count != all)
      return refuse(
          fmt::format("names {} of {} experts, and adapters are of all experts of a layer: {} {} "
                      "have none",
                      count, all, all - count, name));
  if (named.gate != named.up)
    return refuse(fmt::format("names {} of experts without {}, and PEFT has one adapter for both",
                              named.gate > 0 ? hf.expert_gate : hf.expert_up,
                              named.gate > 0 ? hf.expert_up : hf.expert_gate));
  return false;
}

/// Rules of adapters of experts, which have PEFT's limits for stacks of experts.
static void expert_adapter_rules(const Recipe& r, const BrokenRule& broken) {
  bool any = false;
  const LoraConfig& lora = r.model.lora;
  for (int64_t i = 0; i < r.model.num_hidden_layers; ++i) {
    const NamedExperts named = named_experts(r.model, i);
    any = any || named.any();
    if (named.any() && named_apart(r, i, named, broken)) return;
  }
  if (!any) return;
  const auto refuse = [&](const char* key, const std::string& why) {
    broken("lora.target_modules", "names experts: " + why, {key});
  };
  if (lora.dropout > 0)
    refuse("lora.dropout", "PEFT has no dropout of their inputs; nearest valid value: lora.dropout: 0");
  if (lora.dora) refuse("lora.dora", "PEFT has no magnitudes of them; nearest valid value: lora.dora: false");
  if (lora.init == LoraInit::pissa)
    refuse("lora.init", "stacks of experts are not decomposed; nearest valid value: lora.init: zero");
  if (lora.use_rslora)
    refuse("lora.use_rslora",
           "PEFT joins gate and up to one adapter of twice the rank, whose scale would be sqrt(2) times as "
           "large; nearest valid value: lora.use_rslora: false");
  const auto pattern = [&](const auto& entries, const char* key) {
    for (const auto& [entry, value] : entries)
      for (int64_t i = 0; i < r.model.num_hidden_layers; ++i)
        if (named_experts(r.model, i).any() && named_experts(r.model, i, entry).any())
          return refuse(key,
                        fmt::format("they have lora.r and lora.alpha, and {} gives them {}", key, value));
  };
  pattern(lora.rank_pattern, "lora.rank_pattern");
  pattern(lora.alpha_pattern, "lora.alpha_pattern");
  if (r.parallel.replicated_experts > 0)
    refuse("parallel.shadow_experts",
           "replicas of experts have no adapters; nearest valid value: parallel.shadow_experts: 0");
  if (r.model.moe.row_budget)
    refuse("model.moe.row_budget",
           "adapters need memory that a budget of rows does not count; nearest valid value: "
           "model.moe.row_budget: null");
}

void lora_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.model.lora.on()) return;
  const auto refuse = [&](const char* key, const std::string& why) { broken("lora.r", why, {key}); };
  if (r.model.lora.base == LoraBase::nf4) nf4_rules(r, broken);
  if (r.model.lora.target_modules.empty())
    refuse("lora.target_modules",
           "has no module to adapt; nearest valid value: lora.target_modules: [all-linear]");
  if (r.parallel.tensor > 1 && r.parallel.tensor_mode != TensorModeChoice::one_d)
    refuse("parallel.tensor_mode",
           fmt::format(
               "adapters are sharded over one axis, and parallel.tensor_mode: {} has two or three; nearest "
               "valid value: parallel.tensor_mode: 1d",
               r.parallel.tensor_mode));
  if (computes_in(r, Precision::fp8) && r.model.lora.dora)
    refuse("precision",
           "magnitudes of rows are of weights that are not rounded to FP8; nearest valid value: lora.dora: "
           "false, or precision: bf16");
  if (computes_in(r, Precision::fp8) && r.model.lora.base == LoraBase::nf4)
    refuse("precision",
           "frozen weights of 4 bits are dequantised for matmuls in bf16; nearest valid value: lora.base: "
           "full, or precision: bf16");
  if (r.model.num_nextn_predict_layers > 0)
    refuse("model.num_nextn_predict_layers",
           "multi-token prediction trains whole modules; nearest valid value: "
           "model.num_nextn_predict_layers: 0");
  if (r.parallel.async_tensor_parallel == OverlapChoice::on)
    refuse("parallel.async_tensor_parallel",
           "adapters add to a whole matmul; nearest valid value: parallel.async_tensor_parallel: auto");
  if (r.checkpoint.adapter && !r.checkpoint.load_path)
    broken("lora.adapter",
           "adapts the weights of a model, and the run begins with none; give model.from or "
           "checkpoint.load.path",
           {"checkpoint.load.path"});
  if (r.checkpoint.adapter && r.checkpoint.load_parts != LoadParts::weights)
    broken("lora.adapter",
           fmt::format("= {}: checkpoint.load.parts: {} has adapters already; nearest valid value: null",
                       *r.checkpoint.adapter, to_string(r.checkpoint.load_parts)),
           {"checkpoint.load.parts"});
  if (r.model.lora.init == LoraInit::pissa) pissa_rules(r, broken);
  expert_adapter_rules(r, broken);
  if (r.train.router_warmup_steps > 0)
    refuse("train.router_warmup_steps",
           "routers are frozen beside adapters; nearest valid value: train.router_warmup_steps: 0");
  if (r.model.tie_word_embeddings)
    for (const std::string& module : r.model.lora.modules_to_save)
      for (const std::string& name : {r.model.names().tokens, r.model.names().output})
        if (LoraConfig::names_module(module, name))
          broken("lora.modules_to_save",
                 fmt::format("{} is tied to the {}, and PEFT would untie them; nearest valid value: [], or "
                             "model.tie_word_embeddings: false",
                             module, name == r.model.names().tokens ? "output layer" : "embedding"),
                 {"model.tie_word_embeddings"});
}

}  // namespace ltrain::recipe
