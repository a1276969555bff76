// ltrain run: checks everything that can be checked, then starts the ranks, or is one.
#include <cstdio>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "runtime/launch/folder_lock.h"
#include "runtime/launch/handed.h"
#include "runtime/launch/job.h"
#include "runtime/launch/supervisor.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/rank_map.h"
#include "runtime/train/check_offload.h"
#include "runtime/train/trainer.h"

namespace ltrain::app {
namespace {

struct RunOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  bool force = false, dry_run = false, keys = false;
};

/// For a rank of a job. Where Slurm shows each rank a GPU of its own, the one that is seen is enough for
/// auto.
Recipe resolve_here(const Recipe& given, const RankInfo& me) {
  const Recipe here = resolve(given, me.world_size, me.local_size);
  if (given.device != DeviceChoice::automatic || me.source != "Slurm") return here;
  Recipe gpu = here;
  gpu.device = DeviceChoice::cuda;
  try {
    check_device(gpu, 1);
  } catch (const Error&) {
    return here;
  }
  return gpu;
}

void run_rank(const RunOptions& o) {
  // A launcher has read and checked the file, which may be another one by now.
  const std::optional<std::string> handed =
      handed_text(process_variables(), kRecipeVariable, kMostRecipeBytes);
  Recipe recipe = handed ? parse_recipe(*handed, o.recipe, o.overrides) : load_recipe(o.recipe, o.overrides);
  JobOptions options;
  options.settings = job_settings(recipe);
  if (recipe.launch.interface) options.interface = *recipe.launch.interface;
  options.hang_seconds = recipe.launch.distributed_timeout_minutes * 60;
  options.shared_gpu = recipe.debug.shared_gpu;
  auto job = Job::join(options);
  ExitCode code = ExitCode::done;
  std::optional<FolderLock> lock;  // the others write nothing before they have met rank 0, and it leaves last
  try {
    recipe = resolve_here(recipe, job->info());
    check_device(recipe, 1);  // Slurm may show each rank its own
    check_data(recipe);
    if (job->info().rank == 0 && !job->info().launched) lock.emplace(lock_output(recipe.output_dir));
    code = train(recipe, *job, {o.force});
  } catch (const std::exception& e) {
    job->fail(e);
  }
  job->finish(code);
  if (code != ExitCode::done) throw CLI::RuntimeError(static_cast<int>(code));
}

/// Ranks that this launcher starts: what the environment says, else the recipe's, else its share of the
/// product of the axes, else one.
int ranks_to_start(const Recipe& r, const LaunchEnvironment& e) {
  if (e.kind == LaunchEnvironment::Kind::node && e.ranks_per_node > 0) return e.ranks_per_node;
  if (r.launch.ranks_per_node > 0) return static_cast<int>(r.launch.ranks_per_node);
  const int64_t others = r.parallel.tensor * r.parallel.pipeline * r.parallel.context;
  const int64_t product = others * std::max<int64_t>(1, r.parallel.data);
  if (product > kMaxRanks)
    fail(ExitCode::usage, "{} ranks: the axes of the recipe make more than the {} that a job can have",
         product, kMaxRanks);
  if (r.parallel.data <= 0) return static_cast<int>(others);
  const int64_t all = r.parallel.data * others;
  if (all % e.nodes != 0)
    fail(ExitCode::usage,
         "{} ranks of the recipe do not divide over {} nodes ({}); set launch.ranks_per_node or "
         "parallel.data: {}",
         all, e.nodes, e.source, std::max<int64_t>(1, r.parallel.data / e.nodes) * e.nodes);
  return static_cast<int>(all / e.nodes);
}

void launch(const RunOptions& o, const LaunchEnvironment& e) {
  const std::string text = read_recipe(o.recipe);
  const Recipe given = parse_recipe(text, o.recipe, o.overrides);
  const int local = ranks_to_start(given, e);
  const Recipe recipe = resolve(given, local * e.nodes, local);
  if (!o.dry_run) check_device(recipe, local);
  check_data(recipe);
  const Plan plan = make_plan(recipe, default_profile(device_of(recipe)));
  if (!o.force) check_memory(plan);
  check_resume(recipe, plan);
  check_offload(recipe, plan, local);
  if (o.dry_run) {
    const RankMap map = map_ranks(recipe, host_names(e.nodes, process_variables()));
    std::fputs(plan_text(plan, recipe, &map).c_str(), stdout);
    return;
  }
  SuperviseOptions s;
  s.ranks = local;
  s.arguments = {"run", o.recipe};
  s.arguments.insert(s.arguments.end(), o.overrides.begin(), o.overrides.end());
  if (o.force) s.arguments.push_back("--force");
  s.run_dir = recipe.output_dir;
  s.settings = job_settings(given);
  const Fd handed = make_handed_text(text);
  s.handed.emplace_back(kRecipeVariable, handed.get());
  std::optional<FolderLock> lock;
  if (e.node == 0) {
    lock.emplace(lock_output(recipe.output_dir));
    // Its ranks keep it: what they still write after a launcher that was killed is not another run's.
    s.handed.emplace_back(kLockVariable, lock->descriptor());
  }
  s.threads_per_rank = threads_per_rank(recipe);
  s.attempt = e.attempt;
  if (e.kind == LaunchEnvironment::Kind::node) {
    s.node = e.node, s.nodes = e.nodes, s.token = e.token;
    s.coordinator_host = e.coordinator_host, s.coordinator_port = e.coordinator_ports.at(0);
  }
  const int code = supervise(s);
  if (code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void add_run(CLI::App& app) {
  auto* command = app.add_subcommand(
      "run", "Train by a recipe: starts one process per rank, or joins those of Slurm, torchrun, MPI");
  auto o = std::make_shared<RunOptions>();
  command->add_option("recipe", o->recipe, "YAML recipe")->required();
  command->add_option("overrides", o->overrides,
                      "key=value, e.g. train.train_steps=100; ~key goes back to the default");
  command->add_flag("--force", o->force, "Start although the plan exceeds the memory that is there");
  command->add_flag("--dry-run", o->dry_run, "Check everything, print the plan, start nothing");
  command->allow_extras();  // --section.key=value
  command->footer(
      "Example: ltrain run recipes/quickstart.yaml train.train_steps=100\n`ltrain recipe keys` lists every "
      "key.");
  command->callback([o, command] {
    take_extras(*command, o->overrides);
    const LaunchEnvironment e = detect_environment(process_variables());
    if (e.kind == LaunchEnvironment::Kind::rank) return run_rank(*o);
    launch(*o, e);
  });
}

}  // namespace ltrain::app
