// Rules of LoRA. Names of modules are checked once the model is known (check_optimizer_of).
#include "base/error.h"
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
  if (computes_in(r, Precision::fp8))
    refuse("precision", "adapters need their inputs in bf16; nearest valid value: precision: bf16");
  if (r.model.num_nextn_predict_layers > 0)
    refuse("model.num_nextn_predict_layers",
           "multi-token prediction trains whole modules; nearest valid value: "
           "model.num_nextn_predict_layers: 0");
  if (r.parallel.async_tensor_parallel == OverlapChoice::on)
    refuse("parallel.async_tensor_parallel",
           "adapters add to a whole matmul; nearest valid value: parallel.async_tensor_parallel: auto");
  if (r.checkpoint.adapter && !r.checkpoint.load_path)
    broken(
        "lora.adapter",
        fmt::format("= {}: adapts the weights of a model, and the run begins with none; give model.from or "
                    "checkpoint.load.path",
                    *r.checkpoint.adapter),
        {"checkpoint.load.path"});
  if (r.checkpoint.adapter && r.checkpoint.load_parts != LoadParts::weights)
    broken("lora.adapter",
           fmt::format("= {}: checkpoint.load.parts: {} has adapters already; nearest valid value: null",
                       *r.checkpoint.adapter, to_string(r.checkpoint.load_parts)),
           {"checkpoint.load.parts"});
  if (r.model.lora.init == LoraInit::pissa) pissa_rules(r, broken);
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
