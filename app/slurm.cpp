// `ltrain slurm recipe.yaml`: the sbatch script for a run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/slurm_script.h"
#include "kernels/core/error.h"

namespace ltrain::app {
namespace {

/// "alice's run" -> 'alice'\''s run': one word for the shell, whatever is in it.
std::string quoted(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-+=./,:@%") == std::string::npos;
  if (plain) return text;
  std::string out = "'";
  for (char c : text) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

void check_word(const std::string& option, const std::string& value) {
  if (value.find_first_of(" \t\n\r'\"\\$`") != std::string::npos)
    fail(ExitCode::usage, "{}=\"{}\": must be one word without quotes, as it becomes a line of #SBATCH",
         option, value);
}

}  // namespace

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

std::string slurm_script(const SlurmOptions& o) {
  check_word("--partition", o.partition);
  check_word("--account", o.account);
  check_word("--job-name", o.job_name);
  check_word("--time", o.time);
  for (unsigned char c : o.recipe)
    if (c < 32) fail(ExitCode::usage, "the recipe's path \"{}\" has a control character", o.recipe);
  const int minutes = parse_slurm_minutes(o.time);
  if (minutes < 1)
    fail(ExitCode::usage,
         "--time=\"{}\": must be at least a minute, as minutes, hours:minutes:seconds or days-hours", o.time);
  if (o.signal_lead_seconds * 2 >= minutes * 60)
    fail(ExitCode::usage, "--signal-lead={}: must be less than half of --time={} ({} s)",
         o.signal_lead_seconds, o.time, minutes * 60);
  std::string t = "#!/bin/bash\n";
  auto sbatch = [&](const std::string& line) { t += "#SBATCH " + line + "\n"; };
  t += fmt::format("# Made by `ltrain slurm {}`: {} ranks on {} node{}.\n", o.recipe,
                   o.nodes * o.ranks_per_node, o.nodes, o.nodes == 1 ? "" : "s");
  sbatch("--job-name=" + o.job_name);
  sbatch(fmt::format("--nodes={}", o.nodes));
  sbatch(fmt::format("--ntasks-per-node={}", o.ranks_per_node));
  sbatch(fmt::format("--cpus-per-task={}", o.threads_per_rank));
  if (o.gpus_per_node > 0) sbatch(fmt::format("--gpus-per-node={}", o.gpus_per_node));
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
  t += "\nset -u\n";
  t += "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}\n";
  std::string command =
      fmt::format("srun --kill-on-bad-exit=1 --cpus-per-task=\"${{SLURM_CPUS_PER_TASK:-1}}\" \\\n  {} run {}",
                  quoted(o.program), quoted(o.recipe));
  for (const std::string& s : o.overrides) command += " " + quoted(s);
  if (o.max_attempts <= 0) {
    t += "# A step ends as a whole when one rank fails (the site's default may be to wait for the others).\n";
    t += "exec " + command + "\n";
    return t;
  }
  t += fmt::format("max_attempts={}\nattempt=${{SLURM_RESTART_COUNT:-0}}\n\n", o.max_attempts);
  t += "# A step ends as a whole when one rank fails (the site's default may be to wait for the others).\n";
  t += "# Started in the background and waited for, so that a signal to this shell reaches the ranks at "
       "once.\n";
  t += command + " &\n";
  t += "step=$!\n"
       "trap 'kill -USR1 \"$step\" 2>/dev/null' USR1 TERM\n"
       "code=0\n"
       "while true; do\n"
       "  wait \"$step\"\n"
       "  code=$?\n"
       "  kill -0 \"$step\" 2>/dev/null || break # a trapped signal ends wait, not the step\n"
       "done\n\n"
       "# 75 saved after a signal, 71 a rank died or hung, 128 and more killed by a signal: start again.\n"
       "# 64 recipe, 65 data, 70 internal, 73 storage, 76 no progress: another attempt would end the same "
       "way.\n"
       "again=0\n"
       "case \"$code\" in 71 | 75) again=1 ;; esac\n"
       "[ \"$code\" -lt 128 ] || again=1\n"
       "if [ \"$again\" -eq 1 ] && [ \"$attempt\" -lt \"$max_attempts\" ]; then\n"
       "  echo \"ltrain: exit code $code, attempt $attempt of $max_attempts: requeueing job $SLURM_JOB_ID\"\n"
       "  scontrol requeue \"$SLURM_JOB_ID\" && exit 0\n"
       "fi\n"
       "exit \"$code\"\n";
  return t;
}

void add_slurm(CLI::App& app) {
  auto* command = app.add_subcommand("slurm", "Prints the sbatch script for a run");
  auto o = std::make_shared<SlurmOptions>();
  auto output = std::make_shared<std::string>();
  command->add_option("recipe", o->recipe, "The recipe")->required();
  command->add_option("overrides", o->overrides, "key=value, as for ltrain run");
  command->add_option("--nodes", o->nodes, "Nodes")->check(CLI::Range(1, 100000))->capture_default_str();
  command->add_option("--ranks-per-node", o->ranks_per_node, "Ranks (tasks) a node")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--threads-per-rank", o->threads_per_rank, "CPU cores a rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--gpus-per-node", o->gpus_per_node, "GPUs a node; 0: none")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command->add_option("--time", o->time, "Time limit, in Slurm's form")->capture_default_str();
  command
      ->add_option("--signal-lead", o->signal_lead_seconds,
                   "Seconds before the limit at which ranks save and stop")
      ->check(CLI::Range(10, 65535))
      ->capture_default_str();
  command
      ->add_option("--max-attempts", o->max_attempts, "Requeue after exit codes 71 and 75 so often; 0: never")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_option("--partition", o->partition, "Partition");
  command->add_option("--account", o->account, "Account");
  command->add_option("--job-name", o->job_name, "Default: the recipe's file name");
  command->add_option("--program", o->program, "Path of ltrain on the nodes")->capture_default_str();
  command->add_option("--output", *output, "Write the script to this file");
  command->footer("Example: ltrain slurm recipes/quickstart.yaml --nodes 2 --ranks-per-node 4 | sbatch");
  command->callback([o, output] {
    if (!std::filesystem::is_regular_file(o->recipe)) fail(ExitCode::usage, "{}: no such recipe", o->recipe);
    if (o->job_name.empty()) {
      o->job_name = std::filesystem::path(o->recipe).stem().string();
      for (char& c : o->job_name)
        if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '-';
    }
    const std::string text = slurm_script(*o);
    if (output->empty()) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      return;
    }
    std::FILE* file = std::fopen(output->c_str(), "w");
    const bool good = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (!file || std::fclose(file) != 0 || !good) fail(ExitCode::storage, "cannot write {}", *output);
  });
}

}  // namespace ltrain::app
