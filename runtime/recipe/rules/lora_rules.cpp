// Rules of LoRA. Names of modules are checked once the model is known (check_optimizer_of).
#include "base/error.h"
#include "models/moe/expert_adapters.h"
#include "models/moe/moe_layer.h"
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

/// Fails if a pattern gives experts of a layer different ranks or alphas, or gate others than up.
static bool values_apart(const Recipe& r, int64_t layer, const BrokenRule& broken) {
  const NamedExperts named = named_experts(r.model, layer);
  const HfTensorLayout& hf = r.model.family->hf_layout;
  const auto apart = [&](const char* key, const auto& value_of, const std::string& matrix,
                         const std::string& first) {
    const std::string experts = moe_prefix(r.model, layer) + ".experts.";
    const std::string like = experts + "0." + first;
    for (int64_t e = 0; e < r.model.moe.num_experts; ++e) {
      const std::string module = fmt::format("{}{}.{}", experts, e, matrix);
      if (value_of(module + ".weight") == value_of(like + ".weight")) continue;
      broken(
          key,
          fmt::format("gives {} {}, and {} {}; experts of a layer have one value, and gate that of up: name "
                      "all of them, as in {{{}: ..., {}: ..., {}: ...}}",
                      like, value_of(like + ".weight"), module, value_of(module + ".weight"), hf.expert_gate,
                      hf.expert_up, hf.expert_down),
          {"lora.target_modules"});
      return true;
    }
    return false;
  };
  const LoraConfig& lora = r.model.lora;
  const auto rank = [&](const std::string& weight) { return lora.rank_of(weight); };
  const auto alpha = [&](const std::string& weight) { return lora.alpha_of(weight); };
  for (const auto& [count, matrix, first] : {std::tuple{named.gate, hf.expert_gate, hf.expert_gate},
                                             {named.up, hf.expert_up, hf.expert_gate},
                                             {named.down, hf.expert_down, hf.expert_down}})
    if (count > 0 && (apart("lora.rank_pattern", rank, matrix, first) ||
                      apart("lora.alpha_pattern", alpha, matrix, first)))
      return true;
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
  if (lora.dora && r.checkpoint.adapter)
    refuse(
        "lora.adapter",
        "magnitudes of experts are not read from a folder of PEFT; nearest valid value: lora.adapter: null, "
        "or lora.dora: false");
  for (int64_t i = 0; i < r.model.num_hidden_layers; ++i)
    if (values_apart(r, i, broken)) break;
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
