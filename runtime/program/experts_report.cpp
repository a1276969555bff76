#include "runtime/program/experts_report.h"

#include "kernels/matmul/grouped/grouped_gemm.h"
#include "kernels/matmul/grouped/grouped_gemm_check.h"
#include "runtime/program/train_program.h"
#include "runtime/recipe/rules/rules.h"

namespace ltrain {

namespace {

GroupedGemmTraits traits_of(const Recipe& r, int capability) {
  const int64_t parts = recipe::experts_apart(r) ? 1 : r.parallel.tensor;
  GroupedGemmTraits traits;
  traits.type = precision_policy(std::string(to_string(r.precision))).compute;
  traits.capability = capability;
  traits.n = r.model.moe.intermediate_size / parts;  // the other matrix has twice as many rows
  traits.k = r.model.hidden_size;
  return traits;
}

/// Report for matmuls in a type of 16 or more bits.
std::string report(const Recipe& r, int capability, const std::string& why_not_wgmma) {
  const GroupedGemmTraits traits = traits_of(r, capability);
  switch (choose_grouped_gemm(traits)) {
    case GroupedGemm::wgmma:
      if (!why_not_wgmma.empty())
        return fmt::format(
            "one launch for all experts, on tensor cores (mma); those for Hopper (wgmma) are not used, "
            "because {}",
            why_not_wgmma);
      return "one launch for all experts, on Hopper's tensor cores (wgmma)";
    case GroupedGemm::mma:
      return "one launch for all experts, on tensor cores (mma)";
    case GroupedGemm::each:
      break;
  }
  const std::string_view why = grouped_gemm_obstacle(GroupedGemm::mma, traits);
  return fmt::format("a launch for each expert{}{}", why.empty() ? "" : "; one for all: ", why);
}

bool has_experts(const Recipe& r, int capability) { return r.model.moe.num_experts > 0 && capability >= 80; }

}  // namespace

std::string experts_report(const Recipe& r, int capability, const std::string& why_not_wgmma) {
  if (!has_experts(r, capability)) return "";
  const std::string others = report(r, capability, why_not_wgmma);
  if (!computes_in(r, Precision::fp8)) return others;
  return "in FP8 a launch for each expert; of what is not in FP8, " + others;
}

std::string try_experts_kernels(const Recipe& r, int capability, Stream& compute) {
  if (!has_experts(r, capability)) return "";
  const GroupedGemmTraits traits = traits_of(r, capability);
  if (choose_grouped_gemm(traits) != GroupedGemm::wgmma) return "";
  return grouped_wgmma_unusable(compute, traits.type);
}

}  // namespace ltrain
