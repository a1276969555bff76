#include "runtime/train/step_metrics.h"

#include <algorithm>

#include "base/bytes_text.h"
#include "runtime/telemetry/exposed.h"
#include "runtime/train/expert_report.h"
#include "runtime/train/pair_references.h"

namespace ltrain {
namespace {

void add_losses(StepMetrics& m, const Recipe& recipe, const StepResult& r) {
  m.lm_loss = r.loss;
  m.means = r.means;
  if (r.distillation) m.ce_loss = r.distillation->ce_loss, m.kl = r.distillation->kl;
  m.preference = preference_metrics(recipe, r.preference);
  m.grad_norm = r.grad_norm;
  m.skipped = r.skipped || r.overflow;
}

void add_times(StepMetrics& m, const EndedStep& e) {
  m.step_time_ms = e.seconds * 1e3;
  m.data_time_ms = e.waits.loader * 1e3, m.data_wait_ms = e.waits.files * 1e3;
  for (const std::string& axis : e.comm_axes)
    m.exposed_comm_ms.emplace_back(axis, exposed_ms(e.exposed, axis));
  const Offload& o = e.recipe.offload;
  if (o.optimizer.on() || o.params.on() || o.activations.on())
    m.exposed_offload_ms = exposed_ms(e.exposed, "");
  m.tokens_per_sec = static_cast<double>(e.samples * e.recipe.data.seq_length) / e.seconds;
  m.tokens_per_sec_per_gpu = m.tokens_per_sec / e.world_size;
  m.tflops_per_gpu = e.flops / e.seconds / 1e12 / e.world_size;
  m.seconds_left = e.elapsed / static_cast<double>(e.steps) * static_cast<double>(e.end_step - e.step);
}

}  // namespace

StepMetrics step_metrics(const EndedStep& e) {
  StepMetrics m;
  m.step = e.step, m.train_steps = e.recipe.train.train_steps, m.end_step = e.end_step;
  m.consumed_samples = e.position.samples, m.consumed_tokens = e.position.tokens;
  m.lr = e.lr;
  m.loss_scale = e.loss_scale;
  m.skipped_steps = e.skipped_steps;
  m.mem_peak_gib = static_cast<double>(e.arena_peak) / kGiB;
  m.mem_plan_gib = static_cast<double>(e.arena_planned) / kGiB;
  add_losses(m, e.recipe, e.result);
  add_times(m, e);
  // Experts' statistics are those of the first site.
  const SiteShare share = e.recipe.diloco.share(0);
  add_expert_metrics(m, e.result.experts, e.samples / share.of * share.count * e.recipe.data.seq_length);
  return m;
}

}  // namespace ltrain
