// Rules of quantization-aware training. Names and shapes are checked once the model is known
// (runtime/program/quantized_matrices.h, parallel/optim/quantization.h).
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void quantization_rules(const Recipe& r, const BrokenRule& broken) {
  const QuantizationSettings& q = r.quantization;
  if (!q.on()) return;
  if (q.group_size != 0 && q.group_size != 32 && q.group_size != 64 && q.group_size != 128)
    broken("quantization.group_size",
           fmt::format("must be 32, 64, 128, or 0 for one scale a row; nearest valid value: {}",
                       q.group_size < 48   ? 32
                       : q.group_size < 96 ? 64
                                           : 128),
           {"quantization.weights"});
  if (r.model.lora.on())
    broken("quantization.weights",
           fmt::format("quantizes weights that train, and with lora.r = {} they are frozen; nearest valid "
                       "value: none, or lora.r: 0",
                       r.model.lora.rank),
           {"lora.r"});
  if (!r.optimizer.master_weights)
    broken(
        "quantization.weights",
        "makes weights from fp32 master weights, and optimizer.master_weights: false has none; nearest valid "
        "value: none, or optimizer.master_weights: true",
        {"optimizer.master_weights"});
  one_axis_rule(r, broken, "quantization.weights", "none");
  for (const auto& [device, of] : {std::pair("offload.optimizer.device", &r.offload.optimizer),
                                   std::pair("offload.params.device", &r.offload.params)})
    if (of->on())
      broken(device,
             "the master weights of quantized weights stay on the device; nearest valid value: none, or "
             "quantization.weights: none",
             {"quantization.weights"});
}

}  // namespace ltrain::recipe
