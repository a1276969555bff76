// telemetry.on_save: a command that is run for each saved checkpoint while training continues, such as an
// export, a sample of text, an evaluation, or a copy to a bucket.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// A checkpoint that is complete on the disk.
struct SavedCheckpoint {
  int64_t step = 0;
  std::string path;
  std::optional<double> eval_loss;  ///< mean loss of an evaluation at this step
};

/// Runs the command on rank 0, one checkpoint at a time. If a save ends while it runs, it runs again for the
/// newest.
class SaveCommand {
 public:
  /// `recipe` has telemetry.on_save, and outlives this object.
  explicit SaveCommand(const Recipe& recipe) : recipe_(recipe) {}

  void saved(SavedCheckpoint checkpoint);
  /// Returns whether the command reads the checkpoint of this step now, or will next. For any thread.
  bool uses(int64_t step);
  /// Lines of commands that have ended since the last call: their output, or a warning with the reason.
  std::vector<std::string> take_lines();
  /// Ends the command that runs, and runs none from now on.
  void stop();
  /// Waits for the command of the last checkpoint. Returns take_lines().
  std::vector<std::string> finish();

 private:
  void run_all(const std::stop_token& stop, SavedCheckpoint first);
  std::vector<std::string> run(const std::stop_token& stop, const SavedCheckpoint& checkpoint) const;

  const Recipe& recipe_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::optional<int64_t> running_;  // step whose command a thread runs
  bool stopped_ = false;
  std::optional<SavedCheckpoint> next_;  // for the thread
  std::vector<std::string> lines_;
  std::jthread thread_;  // last: ends before the members that it uses
};

}  // namespace ltrain
