#include "runtime/checkpoint/save_command.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/printable.h"
#include "base/progress.h"
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

void SaveCommand::saved(SavedCheckpoint checkpoint) {
  const std::lock_guard lock(mutex_);
  if (stopped_) {
    lines_.push_back(fmt::format("telemetry.on_save is not run for step {}: the run stops", checkpoint.step));
    return;
  }
  if (running_) {
    if (next_)
      lines_.push_back(fmt::format(
          "warning: telemetry.on_save is not run for step {}: the one before still runs", next_->step));
    next_ = std::move(checkpoint);
    return;
  }
  running_ = checkpoint.step;
  thread_ = std::jthread(
      [this, checkpoint = std::move(checkpoint)](const std::stop_token& stop) { run_all(stop, checkpoint); });
}

void SaveCommand::run_all(const std::stop_token& stop, SavedCheckpoint checkpoint) {
  for (;;) {
    std::vector<std::string> said = run(stop, checkpoint);
    const std::lock_guard lock(mutex_);
    lines_.insert(lines_.end(), std::make_move_iterator(said.begin()), std::make_move_iterator(said.end()));
    if (!next_ || stop.stop_requested()) {
      running_.reset();
      idle_.notify_all();
      return;
    }
    checkpoint = *std::exchange(next_, std::nullopt);
    running_ = checkpoint.step;
  }
}

std::vector<std::string> SaveCommand::run(const std::stop_token& stop,
                                          const SavedCheckpoint& checkpoint) const {
  const auto begin = std::chrono::steady_clock::now();
  const ChildEnd child = run_child(shell_command(*recipe_.telemetry.on_save, checkpoint),
                                   recipe_.telemetry.on_save_seconds, save_json(recipe_, checkpoint), stop);
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

bool SaveCommand::uses(int64_t step) {
  const std::lock_guard lock(mutex_);
  return running_ == step || (next_ && next_->step == step);
}

std::vector<std::string> SaveCommand::take_lines() {
  const std::lock_guard lock(mutex_);
  return std::exchange(lines_, {});
}

void SaveCommand::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  thread_.request_stop();
}

std::vector<std::string> SaveCommand::finish() {
  std::unique_lock lock(mutex_);
  // The coordinator takes a rank without progress for one that hangs.
  while (!idle_.wait_for(lock, std::chrono::seconds(1), [this] { return !running_; })) note_progress();
  lock.unlock();
  return take_lines();
}

}  // namespace ltrain
