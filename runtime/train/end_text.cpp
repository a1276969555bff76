#include "runtime/train/end_text.h"

#include "base/cpu_isa.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/program/recipe_program.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain {

std::string begin_text(const Recipe& r, int64_t parameters, int world, const std::string& has,
                       size_t micros) {
  const int64_t trained = trained_parameters(r);
  const auto count = [](int64_t n) { return format_count(static_cast<double>(n)); };
  return fmt::format(
      "{}: {} {} parameters{}, {} rank{} of {}, {}; {} sequences of {} tokens a step, {} micro-batch{} a "
      "rank",
      r.name, count(parameters), r.model.family->name,
      trained == parameters ? "" : fmt::format(" of which {} train", count(trained)), world,
      world == 1 ? "" : "s", has, precision_text(r), r.train.global_batch_size, r.data.seq_length, micros,
      micros == 1 ? "" : "es");
}

std::string threads_text(int threads) {
  return fmt::format("{} thread{} ({})", threads, threads == 1 ? "" : "s", cpu_isa_name());
}

std::vector<std::string> ineffective_on_cpu(const Recipe& r) {
  std::vector<std::string> notes;
  for (const auto& [given, key] : {std::pair(r.debug.shared_gpu, "debug.shared_gpu: true"),
                                   std::pair(!r.deterministic, "deterministic: false")})
    if (given) notes.push_back(fmt::format("note: {} has no effect on the CPU", key));
  return notes;
}

std::string diverged_text(const Recipe& recipe, int64_t step, double loss) {
  return fmt::format(
      "step {}: loss {:.4f} is above train.stop_loss = {}; no update was made and nothing was saved.", step,
      loss, recipe.train.stop_loss);
}

std::string end_text(const Recipe& recipe, const RunEnd& e) {
  const int64_t last = recipe.train.train_steps;
  if (e.code == ExitCode::preempted)
    return saves_at_all(recipe)
               ? fmt::format("stopped at step {} as asked ({}); start again to go on", e.step, e.stop_reason)
               : fmt::format(
                     "stopped at step {} as asked ({}); nothing was saved: checkpoint.save_interval is "
                     "0 and checkpoint.save_at_end is false",
                     e.step, e.stop_reason);
  if (e.step == e.first_step)
    return fmt::format(
        "nothing left to do: step {} of {} is done; {} goes on from here", e.step, last,
        recipe.train.stop_step ? "a larger train.stop_step, or none," : "a larger train.train_steps");
  const std::string time = format_duration(e.seconds);
  if (e.step < last)
    return fmt::format(
        "ended after step {} of {} as {} says, {} steps in {}; start again without it to go on", e.step, last,
        e.steps_given ? "--steps" : "train.stop_step", e.step - e.first_step, time);
  return fmt::format("done: {} steps in {}", e.step - e.first_step, time);
}

}  // namespace ltrain
