#include "parallel/optim/sparsity.h"

#include <algorithm>

#include "parallel/optim/parameter_rule.h"
#include "parallel/optim/parameter_spec.h"

namespace ltrain {

bool is_sparse(const SparsitySettings& settings, const ParameterSpec& spec) {
  return spec.is_linear() && std::any_of(settings.match.begin(), settings.match.end(),
                                         [&](const auto& m) { return name_matches(m, spec.name); });
}

void require_fours(const ParameterSpec& spec) {
  const int64_t whole = spec.slice.global[1], part = spec.shape[1];
  if (part % 4 != 0 || spec.slice.offset[1] % 4 != 0)
    fail(ExitCode::usage,
         "sparsity.match: {} has {} columns{}, and two of each four neighbours cannot be zero where 4 does "
         "not "
         "divide them; leave it out of the patterns{}",
         spec.name, whole, part == whole ? "" : fmt::format(", {} on a rank", part),
         part == whole ? "" : ", or make parallel.tensor smaller");
}

}  // namespace ltrain
