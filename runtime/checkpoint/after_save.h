// Work that follows each save while training continues: telemetry.on_save, and the copy in a bucket.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace ltrain {

/// A checkpoint that is complete on the disk.
struct SavedCheckpoint {
  int64_t step = 0;
  std::string path;
  std::optional<double> eval_loss;  ///< mean loss of an evaluation at this step
};

/// Does the work on a thread, one checkpoint at a time. If a save ends meanwhile, the work is done again for
/// the newest.
class AfterSave {
 public:
  /// Returns lines for the user. It ends early once a stop is requested, and throws nothing.
  using Work = std::function<std::vector<std::string>(const std::stop_token&, const SavedCheckpoint&)>;
  /// `name`: of the work, for messages: "telemetry.on_save".
  AfterSave(std::string name, Work work) : name_(std::move(name)), work_(std::move(work)) {}

  void saved(SavedCheckpoint checkpoint);
  /// Returns whether the work reads the checkpoint of this step now, or will next. For any thread.
  bool uses(int64_t step);
  /// Lines of the work since the last call.
  std::vector<std::string> take_lines();
  /// Ends the work, and does none from now on.
  void stop();
  /// Waits for the work of the last checkpoint. Returns take_lines().
  std::vector<std::string> finish();

 private:
  void work_on(const std::stop_token& stop, SavedCheckpoint first);

  std::string name_;
  Work work_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::optional<int64_t> running_;  // step that the thread works on
  bool stopped_ = false;
  std::optional<SavedCheckpoint> next_;  // for the thread
  std::vector<std::string> lines_;
  std::jthread thread_;  // last: ends before the members that it uses
};

}  // namespace ltrain
