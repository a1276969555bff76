#include "runtime/checkpoint/after_save.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/progress.h"

namespace ltrain {

void AfterSave::saved(SavedCheckpoint checkpoint) {
  const std::lock_guard lock(mutex_);
  if (stopped_) {
    lines_.push_back(fmt::format("{} is not run for step {}: the run stops", name_, checkpoint.step));
    return;
  }
  if (running_) {
    if (next_)
      lines_.push_back(
          fmt::format("warning: {} is not run for step {}: the one before still runs", name_, next_->step));
    next_ = std::move(checkpoint);
    return;
  }
  running_ = checkpoint.step;
  thread_ = std::jthread(
      [this, checkpoint = std::move(checkpoint)](const std::stop_token& stop) { work_on(stop, checkpoint); });
}

void AfterSave::work_on(const std::stop_token& stop, SavedCheckpoint checkpoint) {
  for (;;) {
    std::vector<std::string> said = work_(stop, checkpoint);
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

bool AfterSave::uses(int64_t step) {
  const std::lock_guard lock(mutex_);
  return running_ == step || (next_ && next_->step == step);
}

std::vector<std::string> AfterSave::take_lines() {
  const std::lock_guard lock(mutex_);
  return std::exchange(lines_, {});
}

void AfterSave::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  thread_.request_stop();
}

std::vector<std::string> AfterSave::finish() {
  std::unique_lock lock(mutex_);
  // The coordinator takes a rank without progress for one that hangs.
  while (!idle_.wait_for(lock, std::chrono::seconds(1), [this] { return !running_; })) note_progress();
  lock.unlock();
  return take_lines();
}

}  // namespace ltrain
