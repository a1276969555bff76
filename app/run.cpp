// ltrain run: checks everything that can be checked, then starts the ranks, or is one of them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/load_with_notes.h"
#include "app/make_token_files.h"
#include "app/print_notes.h"
#include "app/refuse_restarts.h"
#include "app/run_replicas.h"
#include "app/shrink_option.h"
#include "app/start_run.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/printable.h"
#include "kernels/tensor/device.h"
#include "runtime/check/background_build.h"
#include "runtime/check/changed_stages.h"
#include "runtime/check/check_job.h"
#include "runtime/check/data_sources.h"
#include "runtime/check/tokenized_sources.h"
#include "runtime/launch/cgroup.h"
#include "runtime/launch/flight_dump.h"
#include "runtime/launch/folder_lock.h"
#include "runtime/launch/handed.h"
#include "runtime/launch/job.h"
#include "runtime/launch/supervisor/supervisor.h"
#include "runtime/plan/plan_print.h"
#include "runtime/plan/rank_map.h"
#include "runtime/program/recipe_program.h"
#include "runtime/recipe/read_file.h"
#include "runtime/telemetry/end_command.h"
#include "runtime/train/stage_changes.h"
#include "runtime/train/trainer.h"

namespace ltrain::app {
namespace {

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

/// Returns whether each rank sees only its own GPU, as with Slurm's GPU binding. One visible GPU is then
/// sufficient, also for auto.
bool shown_one_each(const Recipe& r, const RankInfo& me) {
  return me.source == "Slurm" && r.device != DeviceChoice::cpu && me.local_size > 1 &&
         device_count(DeviceKind::cuda) == 1;
}

/// Runs the checks of `ltrain run` for a rank started by another launcher. Rank 0 checks everything, the
/// first rank of each node its disks, the others their device and data.
Recipe check_joined(const Recipe& given, const RankInfo& me, const RunOptions& o) {
  const bool alone = shown_one_each(given, me);
  Recipe recipe = given;
  if (alone) recipe.device = DeviceChoice::cuda;
  const JobSize size{me.world_size, me.local_size};
  JobChecks checks;
  checks.memory = !o.force;
  checks.gpus_seen = alone ? 1 : size.ranks_per_node;
  checks.part = me.launched          ? JobChecks::Part::rank  // the launcher has checked
                : me.rank == 0       ? JobChecks::Part::job
                : me.local_rank == 0 ? JobChecks::Part::node
                                     : JobChecks::Part::rank;
  return check_job(recipe, size, checks).recipe;
}

/// Locks an existing folder before its contents are read. A missing folder is created once everything else is
/// checked.
std::optional<FolderLock> lock_if_there(const std::string& folder) {
  if (!is_folder(folder)) return std::nullopt;
  return lock_output(folder);
}

/// Tokenises in a rank that another launcher started, which does not know of data. All ranks share the
/// shards, and the ranks of a node its cores. Called before the ranks meet, since it may take long: with
/// data.shuffle_window for what the first steps need.
void tokenize_as_rank(Recipe recipe) {
  if (!has_text_sources(recipe)) return;
  const LaunchEnvironment e = detect_environment(process_variables());
  if (recipe.data.workers == 0) recipe.data.workers = std::max(1, usable_cores() / std::max(1, e.local_size));
  make_token_files(recipe, MadeFiles::needed_first, e.local_rank > 0);
}

/// Override with the data.stages that a run in the recipe's output_dir took while it ran.
std::vector<std::string> taken_override(const Recipe& recipe) {
  const auto taken = taken_stages(recipe.output_dir);
  if (!taken) return {};
  return {"data.stages=" + *taken};
}

/// A recipe with these stages, which the ranks need too.
Recipe with_taken_stages(const Recipe& given, const std::string& text, const RunOptions& o,
                         const std::vector<std::string>& taken) {
  if (taken.empty()) return given;
  std::vector<std::string> all = o.overrides;
  all.insert(all.end(), taken.begin(), taken.end());
  Recipe recipe = parse_recipe(text, o.recipe, all);
  if (stages_text(recipe) != stages_text(given))
    recipe.notes.push_back(fmt::format(
        "data.stages are those of {}/stages.json, which the run took while it went on; delete the "
        "file to go back to those of the recipe",
        printable(given.output_dir)));
  return recipe;
}

/// Runs telemetry.on_end.
void tell_end(const Recipe& recipe, const JobEnd& end) {
  if (const std::string warning = run_end_command(recipe, end); !warning.empty())
    log_lines(LogLevel::warning, "ltrain: " + warning);
}

/// Says after a run that some token files are not made.
void tell_of_missing_files(const std::optional<BackgroundBuild>& build) {
  if (build && !build->is_done() && !build->error())
    print_notes({"some token files are not made yet; the next start makes the others"});
}

/// Checks and trains as a rank that has joined. Throws CLI::RuntimeError after a stop request.
void train_rank(const RunOptions& o, Recipe recipe, Job& job) {
  ExitCode code = ExitCode::done;
  // Taken by rank 0 only: other ranks write nothing before they meet it, and it exits last.
  std::optional<FolderLock> lock;
  std::optional<BackgroundBuild> build;
  const RankInfo& me = job.info();
  try {
    const bool locks = me.rank == 0 && !me.launched;
    if (locks) lock = lock_if_there(recipe.output_dir);
    recipe = check_joined(recipe, me, o);
    if (locks && !lock) lock = lock_output(recipe.output_dir);
    TrainerOptions options{.force = o.force,
                           .steps = o.steps,
                           .restart = read_restart_note(process_variables()),
                           .work_error = {},
                           .with_stages = with_stages};
    // The first rank of each node makes the later token files, as a launcher of ltrain does.
    if (!me.launched && recipe.data.shuffle_window > 0) {
      if (me.local_rank == 0 && !training_files_exist(recipe)) build.emplace(recipe);
      options.work_error = [&build] { return build ? build->error() : std::nullopt; };
    }
    code = train(recipe, job, options);
    tell_of_missing_files(build);
  } catch (const std::exception& e) {
    job.fail(e);
  }
  job.finish(code);
  if (code != ExitCode::done) throw CLI::RuntimeError(static_cast<int>(code));
}

void run_rank(const RunOptions& o) {
  // A launcher has read and checked the file, which may have changed since.
  const std::optional<std::string> handed =
      handed_text(process_variables(), kRecipeVariable, recipe::kMaxFileBytes);
  const std::string text = handed ? *handed : read_recipe(o.recipe);
  Recipe recipe = parse_recipe(text, o.recipe, o.overrides);
  if (!handed) {
    recipe = with_taken_stages(recipe, text, o, taken_override(recipe));
    refuse_restarts(recipe, "ranks that another launcher starts");
    check_replica_variables(recipe, "another launcher");
    tokenize_as_rank(recipe);
  }
  JobOptions options;
  options.settings = job_settings(recipe);
  if (recipe.launch.interface) options.interface = *recipe.launch.interface;
  options.hang_seconds = recipe.launch.distributed_timeout_minutes * 60;
  options.shared_gpu = recipe.debug.shared_gpu;
  options.deterministic = recipe.deterministic;
  options.by_distance = recipe.launch.rank_order == RankOrder::topology;
  options.parts = static_cast<int>(recipe.diloco.sites);
  auto job = Job::join(options);
  if (recipe.log.format == LogFormat::json) log_as_json(job->info().rank);
  // Must be set before CUDA starts. With one stream per group, no group may share a queue with the compute
  // stream, where a wait for another rank would block it.
  if (job->info().world_size > 1) ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  if (job->info().rank != 0 || job->info().launched) return train_rank(o, recipe, *job);
  // Rank 0 of ranks that another launcher has started tells of the end.
  const double began = unix_seconds();
  JobEnd end;
  const auto told = [&](int code, const std::string& reason) {
    end.code = code, end.reason = reason, end.seconds = unix_seconds() - began;
    tell_end(recipe, end);
  };
  try {
    train_rank(o, recipe, *job);
  } catch (const CLI::RuntimeError& e) {
    told(e.get_exit_code(), "");
    throw;
  } catch (const std::exception& e) {
    told(static_cast<int>(exit_code_of(e)), as_error(e).what());
    throw;
  }
  told(static_cast<int>(ExitCode::done), "");
}

void dry_run(const CheckedJob& job, int nodes) {
  const RankMap map = map_ranks(job.recipe, host_names(nodes, process_variables()));
  std::fputs(plan_text(job.plan, job.recipe, &map).c_str(), stdout);
}

/// Arguments of the ranks.
std::vector<std::string> run_arguments(const RunOptions& o, const std::vector<std::string>& more) {
  std::vector<std::string> words{"run", o.recipe};
  words.insert(words.end(), o.overrides.begin(), o.overrides.end());
  words.insert(words.end(), more.begin(), more.end());
  if (o.force) words.push_back("--force");
  if (o.steps > 0) words.push_back(fmt::format("--steps={}", o.steps));
  return words;
}

/// Recipe of a restart. With fewer nodes than the job began with, parallel.data and diloco.sites fall in
/// proportion and train.global_batch_size stays. Throws Error with the rule that forbids it.
class LaterAttempts {
 public:
  /// `begun`: the checked recipe of the first attempt, on `nodes` nodes.
  LaterAttempts(const RunOptions& o, std::string text, const Recipe& begun, int nodes)
      : o_(o), text_(std::move(text)), begun_(begun), nodes_(nodes) {}

  /// Overrides in addition to those of the command line. An attempt that has saved goes on from the newest
  /// checkpoint, also where the recipe says `never` or names the one that the first attempt began with.
  std::vector<std::string> overrides(const NextAttempt& next) const {
    std::vector<std::string> more = taken_override(begun_);
    if (next.from_newest) more.push_back("checkpoint.resume=auto");
    if (next.nodes == nodes_) return more;
    const int64_t data = begun_.parallel.data;
    if (data * next.nodes % nodes_ != 0)
      fail(ExitCode::usage, "parallel.data = {} on {} nodes does not divide over {}", data, nodes_,
           next.nodes);
    more.push_back(fmt::format("parallel.data={}", data * next.nodes / nodes_));
    if (const int64_t sites = begun_.diloco.sites; sites > 1) {
      if (sites * next.nodes % nodes_ != 0)
        fail(ExitCode::usage, "diloco.sites = {} of {} nodes each: {} nodes are not whole sites", sites,
             nodes_ / sites, next.nodes);
      more.push_back(fmt::format("diloco.sites={}", sites * next.nodes / nodes_));
      if (!begun_.diloco.shares.empty())
        more.push_back(fmt::format("diloco.shares=[{}]", fmt::join(shares_of(next), ", ")));
    }
    return more;
  }

  /// Shares of the sites that go on.
  std::vector<int64_t> shares_of(const NextAttempt& next) const {
    const int a_site = nodes_ / static_cast<int>(begun_.diloco.sites);
    std::vector<int64_t> shares;
    for (int i = 0; i < next.nodes; i += a_site) {
      const int node = next.stay.empty() ? i : next.stay.at(static_cast<size_t>(i));
      shares.push_back(begun_.diloco.shares.at(static_cast<size_t>(node / a_site)));
    }
    return shares;
  }

  void prepare(SuperviseOptions& s, const NextAttempt& next) const {
    const std::vector<std::string> more = overrides(next);
    const Recipe recipe = parse(more);
    if (next.nodes != nodes_) check_job(recipe, {s.ranks * next.nodes, s.ranks}, checks());
    s.settings = job_settings(recipe);
    s.arguments = run_arguments(o_, more);
  }

  /// Refuses launch.min_nodes with which the job could not go on.
  void check(const LaunchSettings& launch, int ranks_per_node) const {
    const auto least = static_cast<int>(launch.min_nodes);
    if (least == 0) return;
    if (least > nodes_)
      fail(ExitCode::usage, "launch.min_nodes = {}: the job has {} node{}; nearest valid value: {}", least,
           nodes_, nodes_ == 1 ? "" : "s", nodes_);
    if (least == nodes_) return;
    try {
      check_job(parse(overrides({false, least})), {ranks_per_node * least, ranks_per_node}, checks());
    } catch (const Error& e) {
      fail(e.code(), "launch.min_nodes = {}: the job could not go on with {} of {} nodes: {}", least, least,
           nodes_, e.what());
    }
  }

 private:
  JobChecks checks() const {
    JobChecks c;
    c.memory = !o_.force;
    return c;
  }
  Recipe parse(const std::vector<std::string>& more) const {
    std::vector<std::string> all = o_.overrides;
    all.insert(all.end(), more.begin(), more.end());
    return parse_recipe(text_, o_.recipe, all);
  }

  const RunOptions o_;
  const std::string text_;
  const Recipe begun_;
  const int nodes_;
};

/// Starts a launcher for each replica. Throws CLI::RuntimeError with the exit code of the job.
void launch_replicas(const RunOptions& o, const Recipe& recipe, const JobSize& size, int gpus,
                     const std::vector<std::string>& taken) {
  JobChecks checks;
  checks.memory = !o.force;
  check_job(recipe, size, checks);
  const int code = run_replicas(recipe, run_arguments(o, taken), {size.ranks_per_node, gpus});
  if (code != 0) throw CLI::RuntimeError(code);
}

void launch(const RunOptions& o, const LaunchEnvironment& e) {
  const std::string text = read_recipe(o.recipe);
  Recipe given = parse_recipe(text, o.recipe, o.overrides);
  const std::vector<std::string> taken = taken_override(given);
  const size_t notes = given.notes.size();
  given = with_taken_stages(given, text, o, taken);
  if (given.notes.size() > notes && !o.dry_run) print_notes({given.notes.back()});
  if (e.kind == LaunchEnvironment::Kind::node) check_replica_variables(given, e.source);
  const int gpus = gpus_for(given);
  const JobSize size = job_size(given, e, gpus);
  if (!o.dry_run && starts_replicas(given)) return launch_replicas(o, given, size, gpus, taken);
  if (!o.dry_run) check_host_ranks(given, size);
  std::optional<FolderLock> lock;
  if (e.node == 0 && !o.dry_run) lock = lock_if_there(given.output_dir);
  JobChecks checks;
  checks.memory = !o.force;
  CheckedJob job = check_job(given, size, checks);
  const Recipe& recipe = job.recipe;
  if (o.dry_run) {
    print_notes(recipe.notes);
    return dry_run(job, size.world / size.ranks_per_node);
  }
  // Everything else was checked before the data is tokenised, which may take long.
  if (has_pending_sources(recipe)) {
    make_token_files(recipe, MadeFiles::needed_first, false);
    job = check_job(given, size, checks);
  }
  if (recipe.log.format == LogFormat::json) log_as_json(-1);
  const LaterAttempts later(o, text, recipe, size.world / size.ranks_per_node);
  later.check(recipe.launch, size.ranks_per_node);
  SuperviseOptions s;
  s.ranks = size.ranks_per_node;
  s.arguments = run_arguments(o, taken);
  s.run_dir = recipe.output_dir;
  s.log_bytes = static_cast<int64_t>(recipe.log.rank_file_mib * (1 << 20));
  s.flight_dir = recipe.output_dir + "/flight";
  s.settings = job_settings(given);
  const Fd handed = make_handed_text(text);
  s.handed.emplace_back(kRecipeVariable, handed.get());
  if (e.node == 0) {
    if (!lock) lock = lock_output(given.output_dir);
    // The ranks keep the lock, so that no other run starts while they still write after their launcher was
    // killed.
    s.handed.emplace_back(kLockVariable, lock->descriptor());
  }
  s.threads_per_rank = threads_per_rank(recipe);
  s.attempt = e.attempt;
  s.restarts = {static_cast<int>(recipe.launch.max_restarts), recipe.launch.restart_wait_seconds,
                recipe.launch.restart_wait_cap_seconds};
  s.least_nodes = static_cast<int>(recipe.launch.min_nodes);
  s.prepare = [&later](SuperviseOptions& next, const NextAttempt& attempt) { later.prepare(next, attempt); };
  if (e.node == 0) s.on_end = [&recipe](const JobEnd& end) { tell_end(recipe, end); };
  if (e.kind == LaunchEnvironment::Kind::node) {
    s.node = e.node, s.nodes = e.nodes, s.token = e.token;
    s.coordinator_host = e.coordinator_host, s.coordinator_port = e.coordinator_ports.at(0);
  }
  std::optional<BackgroundBuild> build;
  if (!training_files_exist(recipe)) {
    build.emplace(recipe);
    s.work_error = [&build] { return build->error(); };
  }
  const int code = supervise(s);
  tell_of_missing_files(build);
  if (build && code != 0 && build->error()) throw *build->error();
  if (code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void start_run(const RunOptions& o) {
  const LaunchEnvironment e = detect_environment(process_variables());
  if (e.kind != LaunchEnvironment::Kind::rank || (o.dry_run && e.rank == 0)) return launch(o, e);
  if (!o.dry_run) run_rank(o);  // in a dry run the first rank reports everything
}

void add_run(CLI::App& app) {
  auto* command = app.add_subcommand(
      "run", "Train by a recipe: starts one process per rank, or joins those of Slurm, torchrun, MPI");
  struct Options : RunOptions {
    ShrinkOption shrink;
  };
  auto o = std::make_shared<Options>();
  command->add_option("recipe", o->recipe, "YAML recipe")->required();
  command->add_option("overrides", o->overrides,
                      "key=value, e.g. optimizer.lr=1e-3; ~key goes back to the default");
  command->add_flag("--force", o->force,
                    "Start although the plan exceeds the memory that is there (exit code 78)");
  command
      ->add_option("--steps", o->steps,
                   "End after so many steps, with the evaluation and the save of an end; the schedule stays "
                   "that of the recipe, and a later start goes on")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_flag("--dry-run", o->dry_run, "Check everything, print the plan, start nothing");
  o->shrink.add_to(*command);
  command->allow_extras();  // --section.key=value
  command->footer(
      "Example: ltrain run recipes/quickstart.yaml --steps 20\n`ltrain recipe keys` lists every key.");
  command->callback([o, command] {
    take_extras(*command, o->overrides);
    if (o->shrink.ranks > 0) {
      const LaunchEnvironment e = detect_environment(process_variables());
      if (e.kind == LaunchEnvironment::Kind::rank || e.kind == LaunchEnvironment::Kind::node)
        fail(ExitCode::usage,
             "ltrain run --shrink: starts its own ranks on one machine, and this process was started by {}; "
             "run it outside of the job",
             e.source);
      o->overrides = o->shrink.apply(o->recipe, o->overrides, !o->dry_run);
    }
    start_run(*o);
  });
}

}  // namespace ltrain::app
