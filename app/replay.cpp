// ltrain replay: repeats steps of a run from a checkpoint, and compares them with what the run recorded.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/start_run.h"
#include "base/error.h"
#include "base/printable.h"
#include "runtime/checkpoint/store.h"
#include "runtime/launch/environment/environment.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/recipe.h"
#include "runtime/telemetry/replay.h"

namespace ltrain::app {
namespace {

struct ReplayOptions {
  std::string run, from;
  int64_t step = 0;
  std::vector<std::string> overrides;
  bool force = false, json = false;
};

/// Newest checkpoint before `step` that can be read; none: the path is empty and the step is 0.
Candidate checkpoint_before(const std::string& run, int64_t step) {
  for (const Candidate& c : list_checkpoints(run + "/checkpoints"))
    if (c.error.empty() && c.manifest.info.healthy && c.step() < step) return c;
  return {};
}

Candidate checkpoint_of(const ReplayOptions& o, int64_t step) {
  if (o.from.empty()) return checkpoint_before(o.run, step);
  Candidate c = read_checkpoint(o.from);
  if (!c.error.empty()) fail(ExitCode::usage, "--from {}: {}", printable(o.from), c.error);
  if (c.step() >= step)
    fail(ExitCode::usage,
         "--from {}: is of step {}, and step {} is to be repeated; expected an earlier checkpoint",
         printable(o.from), c.step(), step);
  return c;
}

/// Settings under which a repetition changes nothing of the run: a folder of its own, no saves, no restarts.
RunOptions repetition(const ReplayOptions& o, const Candidate& from, int64_t step,
                      const std::string& folder) {
  RunOptions run{.recipe = o.run + "/recipe.yaml", .overrides = {}, .force = o.force};
  run.overrides = {"output_dir=" + folder,
                   "checkpoint.resume=" + (from.path.empty() ? std::string("never") : from.path),
                   "checkpoint.save_interval=0", "checkpoint.save_at_end=false", "train.eval_interval=0"};
  const Recipe recipe = load_recipe(run.recipe);
  for (const char* key :
       {"checkpoint.keep_best", "checkpoint.keep_every", "launch.max_restarts", "launch.restart_wait_seconds",
        "launch.restart_wait_cap_seconds", "launch.min_nodes", "telemetry.on_end", "telemetry.on_end_seconds",
        "telemetry.on_save", "telemetry.on_save_seconds", "telemetry.prometheus",
        "telemetry.prometheus_port"})
    if (recipe.origins->has(key)) run.overrides.push_back("~" + std::string(key));
  run.overrides.insert(run.overrides.end(), o.overrides.begin(), o.overrides.end());
  run.steps = step - (from.path.empty() ? 0 : from.step());
  return run;
}

int64_t step_to_repeat(const ReplayOptions& o) {
  std::error_code error;
  if (!std::filesystem::exists(o.run + "/recipe.yaml", error))
    fail(ExitCode::usage, "{}: has no recipe.yaml; expected the output_dir of a run", printable(o.run));
  const int64_t last = last_attempted_step(o.run);
  if (last == 0)
    fail(ExitCode::usage, "{}: has no step in metrics.jsonl: nothing to repeat", printable(o.run));
  if (o.step > last)
    fail(ExitCode::usage, "--step {}: the run has got to step {}; nearest valid value: {}", o.step, last,
         last);
  return o.step > 0 ? o.step : last;
}

void replay(const ReplayOptions& o) {
  const int64_t step = step_to_repeat(o);
  const Candidate from = checkpoint_of(o, step);
  const std::string folder = o.run + "/replay";
  Replay r;
  r.begun = from.path.empty() ? 0 : from.step();
  r.step = step;
  r.same_settings = o.overrides.empty();
  r.failed_before = ended_not_finite(o.run, step);
  std::error_code error;
  if (std::filesystem::exists(o.run + "/metrics.jsonl", error)) r.recorded = read_steps(o.run, r.begun, step);
  // A value that a later attempt of the run has recorded replaces the failure.
  for (const StepValues& s : r.recorded) r.failed_before = r.failed_before && s.step != step;

  const LaunchEnvironment e = detect_environment(process_variables());
  const bool speaks = e.rank == 0 && e.node == 0;
  if (speaks)
    std::fprintf(stderr, "replay: steps %lld to %lld of %s, from %s, in %s\n",
                 static_cast<long long>(r.begun + 1), static_cast<long long>(step), printable(o.run).c_str(),
                 from.path.empty() ? "the beginning" : printable(from.path).c_str(),
                 printable(folder).c_str());
  try {
    start_run(repetition(o, from, step, folder));
  } catch (const CLI::RuntimeError& stop) {
    if (stop.get_exit_code() != static_cast<int>(ExitCode::no_progress)) throw;
    r.failed_again = true;
  }
  if (!speaks) return;
  r.repeated = read_steps(folder, r.begun, step);
  std::fputs((o.json ? replay_json(r) : replay_text(r)).c_str(), stdout);
  const ReplayResult result = result_of(r);
  if (result != ReplayResult::repeats && result != ReplayResult::fails_no_more)
    throw CLI::RuntimeError(static_cast<int>(ExitCode::no_progress));
}

}  // namespace

void add_replay(CLI::App& app) {
  auto* command = app.add_subcommand(
      "replay",
      "Repeat steps of a run from a checkpoint, and compare them with what it recorded, to the bit");
  auto o = std::make_shared<ReplayOptions>();
  command->add_option("run", o->run, "output_dir of the run")->required();
  command->add_option("overrides", o->overrides,
                      "key=value, for a replay with other settings or another layout");
  command
      ->add_option("--step", o->step,
                   "Last step to repeat; default: the step that was NaN or infinite, else the last one")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--from", o->from,
                      "Checkpoint to begin with; default: the newest of the run before the step");
  command->add_flag("--force", o->force, "Start although the plan exceeds the memory that is there");
  command->add_flag("--json", o->json, "For programs");
  command->allow_extras();  // --section.key=value
  command->footer("Example: ltrain replay runs/quickstart");
  command->callback([o, command] {
    take_extras(*command, o->overrides);
    replay(*o);
  });
}

}  // namespace ltrain::app
