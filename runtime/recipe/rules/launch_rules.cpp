// Rules of processes, their restarts, and the files for other programs.
#include "base/error.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void launch_rules(const Recipe& r, const BrokenRule& broken) {
  const double first = r.launch.restart_wait_seconds, longest = r.launch.restart_wait_cap_seconds;
  if (r.launch.max_restarts > 0 && longest < first)
    broken(
        "launch.restart_wait_cap_seconds",
        fmt::format("is below the first wait, launch.restart_wait_seconds = {:g}; nearest valid value: {:g}",
                    first, first),
        {"launch.restart_wait_seconds"});
  const auto& file = r.telemetry.prometheus;
  if (file && (!file->ends_with(".prom") || file->ends_with("/.prom")))
    broken("telemetry.prometheus",
           "the collector of node_exporter reads files whose names end in .prom; nearest valid value: " +
               *file + (file->ends_with("/") ? "ltrain.prom" : ".prom"),
           {});
}

}  // namespace ltrain::recipe
