// Rules of recomputation.
#include "base/error.h"
#include "kernels/elementwise/group_codes.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {
namespace {

/// Rules of tensors that are saved as codes of 8 bits. The first that is broken is reported.
void compression_rules(const Recipe& r, const BrokenRule& broken) {
  for (const auto& [tensor, save_policy] : r.recompute.tensors) {
    if (save_policy != SavePolicy::int8 && save_policy != SavePolicy::fp8) continue;
    const std::string which = fmt::format("{}: {}", block_tensor_name(tensor), save_policy);
    const bool inner = tensor == BlockTensor::mlp_hidden || tensor == BlockTensor::mlp_activation;
    const int64_t groups = r.parallel.tensor * kGroupChannels;
    const auto refuse = [&](const std::string& rule, std::vector<std::string> others) {
      broken("recompute.tensors", fmt::format("{}: {}; keep it, recompute it, or offload it", which, rule),
             std::move(others));
    };
    if (r.model.moe.num_experts > 0)
      return refuse("routers and experts read exact activations, and a model with experts compresses none",
                    {"model.moe.num_experts"});
    else if (can_recompute(tensor) && !can_compress(tensor))
      return refuse("attention reads it beside statistics of its exact values", {});
    else if (computes_in(r, Precision::fp8))
      return refuse("linear layers in FP8 save codes of their own", {"precision"});
    else if (r.parallel.tensor > 1 && r.parallel.tensor_mode != TensorModeChoice::one_d)
      return refuse(fmt::format("groups of {} channels need parallel.tensor_mode: 1d, got {}", kGroupChannels,
                                r.parallel.tensor_mode),
                    {"parallel.tensor_mode"});
    else if (inner && r.parallel.tensor > 1 && r.model.intermediate_size % groups != 0)
      return refuse(fmt::format("groups of {} channels must not cross the {} tensor-parallel ranks: expected "
                                "model.intermediate_size divisible by {}, got {}",
                                kGroupChannels, r.parallel.tensor, groups, r.model.intermediate_size),
                    {"model.intermediate_size", "parallel.tensor"});
  }
}

}  // namespace

void recompute_rules(const Recipe& r, const BrokenRule& broken) {
  const Recompute& c = r.recompute;
  const std::string number = "recompute.num_layers", kind = "recompute.granularity";
  const bool block = c.granularity == RecomputeGranularity::full && c.method == RecomputeMethod::block;
  if (block && !c.num_layers)
    broken("recompute.method",
           fmt::format("needs {}: the first layers of a stage; nearest valid value: uniform", number), {});
  if ((block || c.granularity == RecomputeGranularity::selective) && c.num_layers && *c.num_layers == 0)
    broken(number,
           "sqrt spaces the inputs that recompute.granularity: full with method: uniform keeps; nearest "
           "valid value: 1",
           {"recompute.method", kind});
  for (const auto& [tensor, save_policy] : c.tensors) {
    if (can_recompute(tensor)) continue;
    const std::string name(block_tensor_name(tensor));
    if (r.model.moe.num_experts == 0)
      broken("recompute.tensors",
             fmt::format("{} is of experts, which a dense model has not; remove it, or give "
                         "model.moe.num_experts",
                         name),
             {"model.moe.num_experts"});
    else if (save_policy == SavePolicy::recompute)
      broken("recompute.tensors",
             name + " is of rows that have travelled, and is not made again; keep it, or offload it", {});
  }
  for (const RecomputeModule m : c.modules) {
    using enum RecomputeModule;
    const bool experts = m == moe || m == moe_act, dense = m == mlp || m == mlp_act;
    if (experts && r.model.moe.num_experts == 0)
      broken("recompute.modules",
             fmt::format("{} is of experts, which a dense model has not; nearest valid value: [{}]", m,
                         m == moe ? mlp : mlp_act),
             {"model.moe.num_experts"});
    if (dense && r.model.moe.num_experts > 0)
      broken("recompute.modules",
             fmt::format("{} is of a dense model, and experts are {}; nearest valid value: [{}]", m,
                         m == mlp ? moe : moe_act, m == mlp ? moe : moe_act),
             {"model.moe.num_experts"});
  }
  compression_rules(r, broken);
  bool recomputes = !c.modules.empty();
  for (const auto& [tensor, save_policy] : c.tensors)
    recomputes = recomputes || save_policy != SavePolicy::keep;
  if (c.granularity == RecomputeGranularity::selective && !recomputes)
    broken(kind, "nothing is selected; give recompute.modules, such as [core_attn], or recompute.tensors",
           {});
}

}  // namespace ltrain::recipe
