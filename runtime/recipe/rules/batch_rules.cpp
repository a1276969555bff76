// Rules of a growing global batch.
#include "base/error.h"
#include "runtime/recipe/nearest_value.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

int64_t batch_unit(const Recipe& r, int64_t data) {
  const DilocoSettings& d = r.diloco;
  const bool unequal =
      !d.shares.empty() && static_cast<int64_t>(d.shares.size()) == d.sites && data % d.sites == 0;
  return r.train.micro_batch_size * (unequal ? data / d.sites * d.share(0).of : data);
}

std::string batch_unit_text(const Recipe& r, int64_t data) {
  const int64_t rows = r.train.micro_batch_size, unit = batch_unit(r, data);
  if (unit != rows * data)
    return fmt::format(
        "train.micro_batch_size * data-parallel ranks of a site * sum of diloco.shares in lowest terms ({} * "
        "{} * {})",
        rows, data / r.diloco.sites, r.diloco.share(0).of);
  if (data > 1) return fmt::format("train.micro_batch_size * data-parallel ranks ({} * {})", rows, data);
  return fmt::format("train.micro_batch_size ({})", rows);
}

void batch_ramp_rules(const Recipe& r, int64_t data, const BrokenRule& broken) {
  const BatchRamp& ramp = r.train.batch_ramp;
  if (ramp.start == 0) return;
  const std::string start = "train.batch_ramp.start", increment = "train.batch_ramp.increment",
                    whole = "train.global_batch_size";
  const int64_t unit = batch_unit(r, data);
  const std::string what = batch_unit_text(r, data);
  if (ramp.increment == 0 || ramp.samples == 0)
    return broken(start, "needs train.batch_ramp.increment and train.batch_ramp.samples", {});
  if (ramp.start % unit != 0)
    return broken(start,
                  fmt::format("must be a multiple of {}; nearest valid value: {}", what,
                              (ramp.start / unit + 1) * unit),
                  {"train.micro_batch_size", "parallel.data"});
  if (ramp.start >= r.train.global_batch_size)
    return broken(start, fmt::format("must be below {} ({})", whole, r.train.global_batch_size), {whole});
  if (ramp.increment % unit != 0 || (r.train.global_batch_size - ramp.start) % ramp.increment != 0)
    broken(increment,
           fmt::format(
               "must be a multiple of {} and divide what the batch grows by ({}); nearest valid value: {}",
               what, r.train.global_batch_size - ramp.start, unit),
           {start, whole, "train.micro_batch_size", "parallel.data"});
}

}  // namespace ltrain::recipe
