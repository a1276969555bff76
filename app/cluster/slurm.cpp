// `ltrain slurm recipe.yaml`: the sbatch script for a run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "app/cluster/slurm_requeue.h"
#include "app/cluster/slurm_script.h"
#include "app/commands.h"
#include "app/load_with_notes.h"
#include "app/refuse_restarts.h"
#include "app/run_replicas.h"
#include "app/shell_word.h"
#include "base/error.h"
#include "base/exit_codes.h"

namespace ltrain::app {
namespace {

void check_word(const std::string& option, const std::string& value) {
  if (value.find_first_of(" \t\n\r'\"\\$`") != std::string::npos)
    fail(ExitCode::usage, "{}=\"{}\": must be one word without quotes, as it becomes a line of #SBATCH",
         option, value);
}

}  // namespace

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
  t += command + " &\n" + requeue_end(codes_of_scripts(true, " | "));
  return t;
}

/// Begin of the command that runs in the image of the options; empty: no image.
static std::string in_container(const SlurmOptions& o) {
  if (o.apptainer_image.empty()) return "";
  return fmt::format("apptainer exec {}--bind {} --pwd \"$PWD\" {} ", o.gpus_per_node > 0 ? "--nv " : "",
                     o.container_mounts.empty() ? "\"$PWD\"" : shell_word(o.container_mounts),
                     shell_word(o.apptainer_image));
}

/// Options of srun for Pyxis.
static std::string pyxis_options(const SlurmOptions& o) {
  if (o.container_image.empty()) return "";
  return fmt::format(" \\\n  --container-image={} --container-mounts={} --container-workdir=\"$PWD\"",
                     shell_word(o.container_image),
                     o.container_mounts.empty() ? "\"$PWD:$PWD\"" : shell_word(o.container_mounts));
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
      "srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task=\"${{SLURM_CPUS_PER_TASK:-1}}\"{} \\\n  {}{} "
      "run "
      "{}",
      pyxis_options(o), in_container(o), shell_word(o.program), shell_word(o.recipe));
  for (const std::string& s : o.overrides) command += " " + shell_word(s);
  if (o.max_attempts > 0) return t + requeue_lines(o, command);
  t += "# A step ends as a whole when one rank fails (the site's default may be to wait for the others).\n";
  t += "exec " + command + "\n";
  return t;
}

/// Declares the options of the command.
static void add_slurm_options(CLI::App& command, SlurmOptions& o, std::string& output) {
  add_request_options(command, o);
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
  auto* pyxis =
      command.add_option("--container-image", o.container_image,
                         "Run the ranks in this image by Pyxis and Enroot (srun --container-image)");
  command.add_option("--apptainer", o.apptainer_image, "Run the ranks in this image by Apptainer")
      ->excludes(pyxis);
  command.add_option("--container-mounts", o.container_mounts,
                     "FOLDER or FOLDER:FOLDER of the container, several by commas; default: the folder where "
                     "sbatch is called");
  command.add_option("--program", o.program, "Path of ltrain on the nodes, or in the image")
      ->capture_default_str();
  command.add_option("--output", output, "Write the script to this file");
  command.footer("Example: ltrain slurm recipes/quickstart.yaml --nodes 2 --ranks-per-node 1 | sbatch");
}

/// Prints the script, with what was not given taken from the recipe and its plan.
static void print_slurm_script(SlurmOptions& o, const std::string& output) {
  const Recipe given = load_with_notes(o.recipe, o.overrides);
  refuse_restarts(given, "ranks that srun starts");
  check_replica_variables(given, "the script");
  const PlannedRequest planned = complete_request(o, given);
  if (o.mem.empty()) {
    o.mem = fmt::format("{}M", planned.node_mib);
    o.notes.push_back(planned.memory_note);
  }
  if (o.time.empty()) {
    o.time = slurm_time(planned.seconds);
    o.notes.push_back(planned.time_note);
    if (!planned.network_note.empty()) o.notes.push_back(planned.network_note);
  }
  o.output_dir = planned.output_dir;
  if (o.job_name.empty()) o.job_name = job_name_of(o.recipe, "-_.");
  write_script(slurm_script(o), output);
}

void add_slurm(CLI::App& app) {
  auto* command = app.add_subcommand("slurm", "Prints the sbatch script for a run");
  auto o = std::make_shared<SlurmOptions>();
  auto output = std::make_shared<std::string>();
  add_slurm_options(*command, *o, *output);
  command->callback([o, output, command] {
    take_extras(*command, o->overrides);
    print_slurm_script(*o, *output);
  });
}

}  // namespace ltrain::app
