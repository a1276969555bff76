// Rules of a growing global batch.
#include "base/error.h"
#include "runtime/recipe/nearest_value.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void batch_ramp_rules(const Recipe& r, int64_t data, const BrokenRule& broken) {
  const BatchRamp& ramp = r.train.batch_ramp;
  if (ramp.start == 0) return;
  const std::string start = "train.batch_ramp.start", increment = "train.batch_ramp.increment",
                    whole = "train.global_batch_size";
  const int64_t unit = r.train.micro_batch_size * data;
  if (ramp.increment == 0 || ramp.samples == 0)
    return broken(start, "needs train.batch_ramp.increment and train.batch_ramp.samples", {});
  if (ramp.start % unit != 0)
    return broken(start,
                  fmt::format("must be a multiple of train.micro_batch_size * data-parallel ranks ({}); "
                              "nearest valid value: {}",
                              unit, (ramp.start / unit + 1) * unit),
                  {"train.micro_batch_size", "parallel.data"});
  if (ramp.start >= r.train.global_batch_size)
    return broken(start, fmt::format("must be below {} ({})", whole, r.train.global_batch_size), {whole});
  if (ramp.increment % unit != 0 || (r.train.global_batch_size - ramp.start) % ramp.increment != 0)
    broken(increment,
           fmt::format("must be a multiple of train.micro_batch_size * data-parallel ranks ({}) and divide "
                       "what the batch grows by ({}); nearest valid value: {}",
                       unit, r.train.global_batch_size - ramp.start, unit),
           {start, whole, "train.micro_batch_size", "parallel.data"});
}

}  // namespace ltrain::recipe
