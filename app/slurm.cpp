// `ltrain slurm recipe.yaml`: the sbatch script for a run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/load_with_notes.h"
#include "app/profile_option.h"
#include "app/refuse_restarts.h"
#include "app/shell_word.h"
#include "app/slurm_requeue.h"
#include "app/slurm_script.h"
#include "base/error.h"
#include "base/exit_codes.h"
#include "runtime/check/check_job.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain::app {
namespace {

void check_word(const std::string& option, const std::string& value) {
  if (value.find_first_of(" \t\n\r'\"\\$`") != std::string::npos)
    fail(ExitCode::usage, "{}=\"{}\": must be one word without quotes, as it becomes a line of #SBATCH",
         option, value);
}

/// The divisor of `n` nearest to `near`; of two, the smaller one.
int64_t nearest_divisor(int64_t n, int64_t near) {
  int64_t best = 1;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0 && std::abs(d - near) < std::abs(best - near)) best = d;
  return best;
}

/// Ranks per node if the options do not give them: the recipe's value, one per GPU, or as many as fill whole
/// nodes of the machine in which its cards are sold.
int preferred_ranks(SlurmOptions& o, const Recipe& recipe) {
  if (recipe.launch.ranks_per_node > 0) return static_cast<int>(recipe.launch.ranks_per_node);
  if (o.gpus_per_node > 0) return o.gpus_per_node;
  if (recipe.device != DeviceChoice::cuda || recipe.parallel.data <= 0 || o.nodes > 0 || o.ranks_per_node > 0)
    return 0;
  const int64_t world = ranks(recipe);
  const AssumedNode node =
      assumed_node(profile_for({o.profile}, DeviceKind::cuda), static_cast<int>(world), gpus_for(recipe));
  if (node.cards == 0) return 0;
  o.notes.push_back(
      fmt::format("A node: {} {}, {}; --ranks-per-node says otherwise.", node.cards, node.card, node.source));
  int64_t most = node.cards;
  while (world % most != 0) --most;
  return static_cast<int>(most);
}

/// Threads per rank from the cores of the job's nodes, and the line that explains them. 0: a CPU job without
/// a profile.
std::pair<int, std::string> threads_of_node(const SlurmOptions& o, const Recipe& recipe) {
  const bool cuda = recipe.device == DeviceChoice::cuda;
  if (!cuda && o.profile.empty()) return {};
  const MachineProfile p = profile_for({o.profile}, cuda ? DeviceKind::cuda : DeviceKind::cpu);
  const int cores = cuda || p.cores_per_node > 0 ? p.cores_per_node : p.cores;
  const std::string ranks =
      fmt::format("{} rank{} a node", o.ranks_per_node, o.ranks_per_node == 1 ? "" : "s");
  if (cores > 0)
    return {std::max(1, cores / o.ranks_per_node),
            fmt::format("Threads a rank: the {} cores of a node, by {}, over {}.", cores, p.source, ranks)};
  // A rank on a GPU has a thread that launches work, one that reads data, and those of its transports.
  constexpr int kOfGpu = 4;
  return {
      kOfGpu,
      fmt::format("Threads a rank: {}, for {} does not say how many cores a node has; cores_per_node in a "
                  "cluster file, or --threads-per-rank, says it.",
                  kOfGpu, p.source)};
}

/// Takes threads, GPUs, memory and time that were not given from the plan of the recipe. device: auto is the
/// CPU here, because the caller has set cuda if GPUs are requested.
void take_from_plan(SlurmOptions& o, Recipe recipe) {
  if (recipe.device == DeviceChoice::automatic) recipe.device = DeviceChoice::cpu;
  if (recipe.device == DeviceChoice::cuda && o.gpus_per_node == 0) o.gpus_per_node = o.ranks_per_node;
  if (o.threads_per_rank > 0) recipe.launch.threads_per_rank = o.threads_per_rank;
  const int64_t own_threads = recipe.launch.threads_per_rank;
  if (o.threads_per_rank == 0 && own_threads == 0) {
    const auto [threads, note] = threads_of_node(o, recipe);
    if (threads > 0) {
      recipe.launch.threads_per_rank = threads;
      o.notes.push_back(note);
    }
  }
  JobChecks checks;
  checks.part = JobChecks::Part::recipe;
  checks.prices.profile = o.profile;
  Plan plan = check_job(recipe, {o.nodes * o.ranks_per_node, o.ranks_per_node}, checks).plan;
  plan.for_this_machine = false;  // Slurm knows the memory of the nodes
  if (!o.force) check_memory(plan);
  if (o.threads_per_rank == 0) {
    o.threads_per_rank = plan.threads_per_rank;
    if (own_threads == 0 && recipe.launch.threads_per_rank == 0)
      o.notes.push_back(
          fmt::format("Threads a rank: the cores of the machine that made this, over {} rank{} a node; "
                      "--threads-per-rank, or --profile with a profile of the nodes, says otherwise.",
                      o.ranks_per_node, o.ranks_per_node == 1 ? "" : "s"));
  }
  if (o.mem.empty()) {
    int64_t largest = 0;
    for (const RankPlan& r : plan.ranks) largest = std::max(largest, r.host_bytes);
    const double mib = static_cast<double>(largest) / 1048576.0;
    const int64_t node = static_cast<int64_t>(std::ceil(mib * o.ranks_per_node * 1.1));
    o.mem = fmt::format("{}M", node);
    o.notes.push_back(fmt::format("Memory: {} rank{} a node of {:.1f} MiB, planned, and a tenth more.",
                                  o.ranks_per_node, o.ranks_per_node == 1 ? "" : "s", mib));
  }
  if (o.time.empty()) {
    const double seconds = plan.total_seconds();
    const bool measured = plan.profile_measured && !plan.profile_built_in;
    o.time = slurm_time(std::max(600.0, seconds * (measured ? 1.25 : 1.5)));
    const std::string by = plan.profile_built_in    ? "the profile " + plan.profile
                           : !plan.profile_measured ? "a guess (`ltrain bench` measures)"
                           : o.profile.empty()      ? "the profile of the machine that made this"
                                                    : "the profile " + o.profile;
    o.notes.push_back(fmt::format("Time: {} planned for {} steps, by {}; and {} more, at least 10 min.",
                                  format_duration(seconds), plan.train_steps, by,
                                  measured ? "a quarter" : "half"));
    if (plan.network_bytes() > 0 && !plan.network_given)
      o.notes.push_back(
          fmt::format("The network between the nodes is not in that profile; {}.", plan.network_source));
  }
}

/// Pattern of a shell's `case` for the exit codes after which the job is requeued: "71 | 75".
std::string again_codes() {
  std::string codes;
  for (const ExitCodeRow& row : exit_code_table())
    if (script_restarts(static_cast<int>(row.code)))
      codes += fmt::format("{}{}", codes.empty() ? "" : " | ", static_cast<int>(row.code));
  return codes;
}

}  // namespace

void place_ranks(SlurmOptions& o, int64_t world, int preferred) {
  const bool nodes_given = o.nodes > 0, ranks_given = o.ranks_per_node > 0;
  if (world <= 0) {
    if (!nodes_given) o.nodes = 1;
    if (!ranks_given) o.ranks_per_node = std::max(1, preferred);
    return;
  }
  const auto set = [&](int64_t nodes, int64_t ranks) {
    o.nodes = static_cast<int>(nodes), o.ranks_per_node = static_cast<int>(ranks);
  };
  if (nodes_given && ranks_given) {
    const int64_t have = static_cast<int64_t>(o.nodes) * o.ranks_per_node;
    if (have == world) return;
    const int64_t ranks = nearest_divisor(world, o.ranks_per_node), nodes = nearest_divisor(world, o.nodes);
    fail(ExitCode::usage,
         "--nodes={} --ranks-per-node={}: {} ranks, but the axes of {} make {}; what would work: --nodes={} "
         "--ranks-per-node={}, --nodes={} --ranks-per-node={}, or a parallel.data of its own that makes {}",
         o.nodes, o.ranks_per_node, have, o.recipe, world, world / ranks, ranks, nodes, world / nodes, have);
  }
  if (nodes_given) {
    if (world % o.nodes != 0)
      fail(ExitCode::usage,
           "--nodes={}: must divide the {} ranks that the axes of {} make; the nearest that does is {}",
           o.nodes, world, o.recipe, nearest_divisor(world, o.nodes));
    return set(o.nodes, world / o.nodes);
  }
  if (ranks_given) {
    if (world % o.ranks_per_node != 0)
      fail(ExitCode::usage,
           "--ranks-per-node={}: must divide the {} ranks that the axes of {} make; the nearest that does is "
           "{}",
           o.ranks_per_node, world, o.recipe, nearest_divisor(world, o.ranks_per_node));
    return set(world / o.ranks_per_node, o.ranks_per_node);
  }
  const int64_t ranks = preferred > 0 && world % preferred == 0 ? preferred : world;
  set(world / ranks, ranks);
}

std::string slurm_time(double seconds) {
  const int64_t minutes = static_cast<int64_t>(std::ceil(seconds / 60 - 1e-9));
  const std::string clock = fmt::format("{:02}:{:02}:00", minutes / 60 % 24, minutes % 60);
  return minutes >= 1440 ? fmt::format("{}-{}", minutes / 1440, clock) : clock;
}

int parse_slurm_minutes(const std::string& time) {
  // Slurm's forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds].
  int days = 0, a = 0, b = 0, c = 0, end = 0;
  const char* s = time.c_str();
  const int length = static_cast<int>(time.size());
  auto whole = [&](int fields, int want) { return fields == want && end == length; };
  if (whole(std::sscanf(s, "%d-%d:%d:%d%n", &days, &a, &b, &c, &end), 4)) return days * 1440 + a * 60 + b;
  if (whole(std::sscanf(s, "%d-%d:%d%n", &days, &a, &b, &end), 3)) return days * 1440 + a * 60 + b;
  if (whole(std::sscanf(s, "%d-%d%n", &days, &a, &end), 2)) return days * 1440 + a * 60;
  if (whole(std::sscanf(s, "%d:%d:%d%n", &a, &b, &c, &end), 3)) return a * 60 + b;
  if (whole(std::sscanf(s, "%d:%d%n", &a, &b, &end), 2)) return a;
  if (whole(std::sscanf(s, "%d%n", &a, &end), 1)) return a;
  return -1;
}

bool is_slurm_memory(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string unit = text.substr(digits);
  return digits > 0 && digits < 16 &&
         (unit.empty() || (unit.size() == 1 && std::strchr("KMGTkmgt", unit[0])));
}

/// Fails for an option that would make another script than asked for, or one that sbatch refuses.
static void check_script_options(const SlurmOptions& o) {
  check_word("--partition", o.partition);
  check_word("--account", o.account);
  check_word("--job-name", o.job_name);
  check_word("--time", o.time);
  check_word("--mem", o.mem);
  if (!o.mem.empty() && !is_slurm_memory(o.mem))
    fail(ExitCode::usage,
         "--mem=\"{}\": must be a number, in MiB or with K, M, G or T, such as 16G; 0: all of a node's",
         o.mem);
  for (unsigned char c : o.recipe)
    if (c < 32) fail(ExitCode::usage, "the recipe's path \"{}\" has a control character", o.recipe);
  const int minutes = parse_slurm_minutes(o.time);
  if (minutes < 1)
    fail(ExitCode::usage,
         "--time=\"{}\": must be at least a minute, as minutes, hours:minutes:seconds or days-hours", o.time);
  if (o.signal_lead_seconds * 2 >= minutes * 60)
    fail(ExitCode::usage, "--signal-lead={}: must be less than half of --time={} ({} s)",
         o.signal_lead_seconds, o.time, minutes * 60);
}

/// First lines of the script: what sbatch reads.
static std::string sbatch_lines(const SlurmOptions& o) {
  std::string t = "#!/bin/bash\n";
  auto sbatch = [&](const std::string& line) { t += "#SBATCH " + line + "\n"; };
  t += fmt::format("# Made by `ltrain slurm {}`: {} ranks on {} node{}.\n", o.recipe,
                   o.nodes * o.ranks_per_node, o.nodes, o.nodes == 1 ? "" : "s");
  for (const std::string& note : o.notes) t += "# " + note + "\n";
  sbatch("--job-name=" + o.job_name);
  sbatch(fmt::format("--nodes={}", o.nodes));
  sbatch(fmt::format("--ntasks-per-node={}", o.ranks_per_node));
  sbatch(fmt::format("--cpus-per-task={}", o.threads_per_rank));
  if (o.gpus_per_node > 0) sbatch(fmt::format("--gpus-per-node={}", o.gpus_per_node));
  if (!o.mem.empty()) sbatch("--mem=" + o.mem);
  sbatch("--time=" + o.time);
  if (!o.partition.empty()) sbatch("--partition=" + o.partition);
  if (!o.account.empty()) sbatch("--account=" + o.account);
  t += fmt::format(
      "# USR1 to all ranks {} s before the end: they save and leave with exit code 75. Slurm may send it\n"
      "# up to 60 s early.\n",
      o.signal_lead_seconds);
  sbatch(fmt::format("--signal=USR1@{}", o.signal_lead_seconds));
  t += "# Requeued after a preemption or a lost node, with the output appended. A restart goes on from the "
       "newest\n"
       "# whole checkpoint (checkpoint.resume: auto).\n";
  sbatch("--requeue");
  sbatch("--open-mode=append");
  sbatch(fmt::format("--output={}-%j.out", o.job_name));
  return t;
}

/// Lines that start the step, wait for it, and requeue the job after exit codes after which another attempt
/// may succeed.
static std::string requeue_lines(const SlurmOptions& o, const std::string& command) {
  std::string t = fmt::format("max_attempts={}\nattempt=${{SLURM_RESTART_COUNT:-0}}\noutput_dir={}\n",
                              o.max_attempts, shell_word(o.output_dir));
  t += requeue_functions();
  t += "# A step ends as a whole when one rank fails (the site's default may be to wait for the others).\n";
  t += "# Started in the background and waited for, so that a signal to this shell reaches the ranks at "
       "once.\n";
  t += command + " &\n" + requeue_end(again_codes());
  return t;
}

std::string slurm_script(const SlurmOptions& o) {
  check_script_options(o);
  std::string t = sbatch_lines(o);
  t += "\nset -u\n"
       "# Only who has it joins this attempt of the job. Not an argument: those are seen by every user of a "
       "node.\n"
       "LTRAIN_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')\n"
       "export LTRAIN_TOKEN\n";
  t += "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}\n";
  std::string command = fmt::format(
      "srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task=\"${{SLURM_CPUS_PER_TASK:-1}}\" \\\n  {} run "
      "{}",
      shell_word(o.program), shell_word(o.recipe));
  for (const std::string& s : o.overrides) command += " " + shell_word(s);
  if (o.max_attempts > 0) return t + requeue_lines(o, command);
  t += "# A step ends as a whole when one rank fails (the site's default may be to wait for the others).\n";
  t += "exec " + command + "\n";
  return t;
}

/// Declares the options of the command.
static void add_slurm_options(CLI::App& command, SlurmOptions& o, std::string& output, std::string& cluster) {
  command.add_option("recipe", o.recipe, "The recipe")->required();
  command.add_option("overrides", o.overrides, "key=value, as for ltrain run");
  command.add_option("--nodes", o.nodes, "Nodes; default: 1, or as many as the recipe's axes need")
      ->check(CLI::Range(1, 100000));
  command
      .add_option("--ranks-per-node", o.ranks_per_node,
                  "Ranks (tasks) a node; default: as the recipe says, else one a GPU, else 1")
      ->check(CLI::Range(1, 1024));
  command
      .add_option(
          "--threads-per-rank", o.threads_per_rank,
          "CPU cores a rank; default: as the recipe says, else the cores of a node over its ranks, by the "
          "profile or cluster file; without one, for CPUs, this machine's")
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--gpus-per-node", o.gpus_per_node,
                  "GPUs a node; default: one a rank with device: cuda, else none")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command.add_option("--time", o.time,
                     "Time limit, in Slurm's form; default: the plan's time and half of it, a quarter "
                     "where its profile was measured; at least 10 min");
  command.add_option("--mem", o.mem, "Memory of a node, in Slurm's form; default: the plan's and a tenth");
  command
      .add_option("--signal-lead", o.signal_lead_seconds,
                  "Seconds before the limit at which ranks save and stop")
      ->check(CLI::Range(10, 65535))
      ->capture_default_str();
  command
      .add_option("--max-attempts", o.max_attempts, "Requeue after exit codes 71 and 75 so often; 0: never")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command.add_option("--partition", o.partition, "Partition");
  command.add_option("--account", o.account, "Account");
  command.add_option("--job-name", o.job_name, "Default: the recipe's file name");
  command.add_option("--profile", o.profile, kProfileHelp);
  command.add_option("--cluster", cluster, kClusterHelp);
  command.add_flag("--force", o.force, "Write the script although a rank needs more memory than a card has");
  command.add_option("--program", o.program, "Path of ltrain on the nodes")->capture_default_str();
  command.add_option("--output", output, "Write the script to this file");
  command.footer("Example: ltrain slurm recipes/quickstart.yaml --nodes 2 --ranks-per-node 1 | sbatch");
  command.allow_extras();  // --section.key=value
}

/// Writes the script to `output`, or to stdout.
static void write_script(SlurmOptions& o, const std::string& output, const std::string& cluster) {
  Recipe given = load_with_notes(o.recipe, o.overrides);
  refuse_restarts(given, "ranks that srun starts");
  if (given.device == DeviceChoice::automatic && o.gpus_per_node > 0) given.device = DeviceChoice::cuda;
  take_cluster(o.profile, cluster, given);
  if (!o.profile.empty()) fit_device(given, o.profile);
  place_ranks(o, given.parallel.data > 0 ? ranks(given) : 0, preferred_ranks(o, given));
  take_from_plan(o, given);
  // Each rank sees only its own cores and would divide them by the ranks of the node again.
  if (given.launch.threads_per_rank != o.threads_per_rank)
    o.overrides.push_back(fmt::format("launch.threads_per_rank={}", o.threads_per_rank));
  o.output_dir = given.output_dir;
  if (o.job_name.empty()) {
    o.job_name = std::filesystem::path(o.recipe).stem().string();
    for (char& c : o.job_name)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '-';
  }
  const std::string text = slurm_script(o);
  if (output.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return;
  }
  std::FILE* file = std::fopen(output.c_str(), "w");
  const bool good = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (!file || std::fclose(file) != 0 || !good) fail(ExitCode::storage, "cannot write {}", output);
}

void add_slurm(CLI::App& app) {
  auto* command = app.add_subcommand("slurm", "Prints the sbatch script for a run");
  auto o = std::make_shared<SlurmOptions>();
  o->nodes = o->ranks_per_node = o->threads_per_rank = 0;  // not given
  o->time.clear();
  auto output = std::make_shared<std::string>(), cluster = std::make_shared<std::string>();
  add_slurm_options(*command, *o, *output, *cluster);
  command->callback([o, output, cluster, command] {
    take_extras(*command, o->overrides);
    write_script(*o, *output, *cluster);
  });
}

}  // namespace ltrain::app
