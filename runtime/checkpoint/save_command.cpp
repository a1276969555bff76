#include "runtime/checkpoint/save_command.h"

#include <chrono>
#include <sstream>

#include "base/json/json.h"
#include "base/printable.h"
#include "base/run_child.h"
#include "parallel/comm/socket.h"

namespace ltrain {
namespace {

std::string save_json(const Recipe& recipe, const SavedCheckpoint& checkpoint) {
  nlohmann::json j{{"name", recipe.name},
                   {"output_dir", recipe.output_dir},
                   {"host", host_name()},
                   {"step", checkpoint.step},
                   {"checkpoint", checkpoint.path}};
  if (checkpoint.eval_loss) j["eval_loss"] = *checkpoint.eval_loss;
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// The command with $1 and $2, as a program of its own: not as a rank of this job, and behind its threads.
std::vector<std::string> shell_command(const std::string& command, const SavedCheckpoint& checkpoint) {
  const std::string begin =
      "unset LTRAIN_RANK LTRAIN_WORLD_SIZE LTRAIN_LOCAL_RANK LTRAIN_LOCAL_SIZE LTRAIN_NODE "
      "LTRAIN_COORDINATOR "
      "LTRAIN_TOKEN LTRAIN_ATTEMPT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK PET_NNODES "
      "SLURM_PROCID "
      "OMPI_COMM_WORLD_RANK PMI_RANK OMP_NUM_THREADS\n"
      "renice -n 10 -p $$ >/dev/null 2>&1\n";
  return {"/bin/sh", "-c", begin + command, "on_save", checkpoint.path, std::to_string(checkpoint.step)};
}

}  // namespace

std::vector<std::string> run_save_command(const Recipe& recipe, const std::stop_token& stop,
                                          const SavedCheckpoint& checkpoint) {
  const auto begin = std::chrono::steady_clock::now();
  const ChildEnd child = run_child(shell_command(*recipe.telemetry.on_save, checkpoint),
                                   recipe.telemetry.on_save_seconds, save_json(recipe, checkpoint), stop);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::vector<std::string> lines;
  if (child.how == ChildEnd::How::exited && child.number == 0)
    lines.push_back(fmt::format("on_save of step {}: ended in {:.1f} s", checkpoint.step, seconds));
  else
    lines.push_back(
        fmt::format("warning: telemetry.on_save of step {}: the command {}", checkpoint.step, child.text));
  std::istringstream output(child.output);
  for (std::string line; std::getline(output, line);) lines.push_back("  " + printable(line, 500));
  return lines;
}

}  // namespace ltrain
