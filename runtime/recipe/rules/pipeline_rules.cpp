// Rules of pipelines: stages, layers of a stage, and the micro-batches that a schedule takes.
#include <algorithm>

#include "base/error.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/split_layers.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void pipeline_rules(const Recipe& recipe, const RecipeOrigins& origins, const BrokenRule& broken) {
  const Parallel& p = recipe.parallel;
  const std::string ranks = "parallel.pipeline", chunks = "parallel.virtual_pipeline",
                    file = "parallel.schedule_file", split = "parallel.pipeline_layers",
                    layers = "model.num_hidden_layers";
  if (p.pipeline == 1) {
    if (p.virtual_pipeline > 1)
      broken(chunks, "one pipeline rank has nothing to interleave; nearest valid value: 1", {ranks});
    if (!p.pipeline_layers.empty())
      broken(split, "one pipeline rank has all layers; remove the key", {ranks});
    return;
  }
  if (p.schedule_file && origins.has("parallel.schedule"))
    broken(file, "and parallel.schedule are two orders of the same stages; set only one of the two",
           {"parallel.schedule"});
  const bool chosen_later = p.chooses_schedule() || p.schedule_file;
  if (p.chooses_schedule() && !p.schedule_file && origins.has(chunks))
    broken(chunks, "is chosen by parallel.schedule: auto; remove the key", {"parallel.schedule"});
  // With enough micro-batches, a schedule can only fail because of its chunks.
  const int64_t enough = 2 * p.pipeline;
  if (!chosen_later)
    if (const pipeline::BrokenRule rule =
            pipeline::schedule_rule(p.schedule, static_cast<int>(p.pipeline),
                                    static_cast<int>(p.virtual_pipeline), static_cast<int>(enough)))
      return broken(chunks, fmt::format("parallel.schedule: {} {}", p.schedule, rule.text),
                    {"parallel.schedule"});
  const int64_t stages = p.pipeline * p.virtual_pipeline, have = recipe.model.num_hidden_layers;
  if (stages > have) {
    const int64_t most = have / p.virtual_pipeline;
    return broken(
        ranks,
        fmt::format("{} make {} stages, each with at least one of {} layers ({}); nearest valid value: {}",
                    p.virtual_pipeline > 1 ? fmt::format("with {} = {}, they", chunks, p.virtual_pipeline)
                                           : std::string("they"),
                    stages, have, layers, std::max<int64_t>(1, most)),
        {chunks, layers, "parallel.schedule"});
  }
  if (!p.pipeline_layers.empty() && !chosen_later)
    if (const std::string wrong = pipeline::split_rule(p.pipeline_layers, have, stages); !wrong.empty())
      broken(split, wrong, {ranks, chunks, layers, "parallel.schedule"});
}

void pipeline_batch_rules(const Recipe& recipe, int64_t micros, int64_t unit, const BrokenRule& broken) {
  const Parallel& p = recipe.parallel;
  if (p.pipeline == 1 || p.chooses_schedule() || p.schedule_file || micros > INT32_MAX) return;
  const pipeline::BrokenRule rule =
      pipeline::schedule_rule(p.schedule, static_cast<int>(p.pipeline), static_cast<int>(p.virtual_pipeline),
                              static_cast<int>(micros));
  if (!rule || rule.nearest_micros.empty()) return;
  std::string nearest;
  for (int m : rule.nearest_micros) nearest += (nearest.empty() ? "" : " or ") + std::to_string(m * unit);
  const std::string what = rule.text.substr(0, rule.text.find(';'));
  broken("train.global_batch_size",
         fmt::format("parallel.schedule: {} {} (each of {} sequences); nearest valid value: {}", p.schedule,
                     what, unit, nearest),
         {"train.micro_batch_size", "parallel.data", "parallel.pipeline", "parallel.schedule"});
}

}  // namespace ltrain::recipe
