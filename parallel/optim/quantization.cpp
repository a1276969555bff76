#include "parallel/optim/quantization.h"

#include <algorithm>

#include "parallel/optim/parameter_rule.h"
#include "parallel/optim/parameter_spec.h"

namespace ltrain {

bool is_quantized(const QuantizationSettings& settings, const ParameterSpec& spec) {
  const auto any = [&](const std::vector<std::string>& patterns) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const auto& m) { return name_matches(m, spec.name); });
  };
  return settings.on() && spec.is_linear() && any(settings.match) && !any(settings.ignore);
}

int64_t quantization_group(const QuantizationSettings& settings, const ParameterSpec& spec) {
  if (!is_quantized(settings, spec)) return 0;
  const int64_t whole = spec.slice.global[1], part = spec.shape[1];
  if (settings.group_size == 0) {
    if (part != whole)
      fail(ExitCode::usage,
           "quantization.group_size = 0: {} has one scale for a row of {} columns, and a rank of "
           "parallel.tensor has {} of them; nearest valid value: 32 or 64 or 128, or parallel.tensor: 1",
           spec.name, whole, part);
    return whole;
  }
  if (part % settings.group_size != 0 || spec.slice.offset[1] % settings.group_size != 0)
    fail(ExitCode::usage,
         "quantization.group_size = {}: {} has {} columns{}, which are not full groups; make group_size "
         "smaller{}, or name the matrix in quantization.ignore",
         settings.group_size, spec.name, whole, part == whole ? "" : fmt::format(", {} on a rank", part),
         part == whole ? ", 0 for one scale a row" : " or parallel.tensor smaller");
  return settings.group_size;
}

}  // namespace ltrain
