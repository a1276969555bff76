// Token files that `ltrain run` makes on a thread of the launcher while its ranks train.
#pragma once
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

class BackgroundBuild {
 public:
  /// Starts to make all token files of the recipe's sources that do not exist, with lower priority than the
  /// ranks. `recipe`: as check_job() returns it.
  explicit BackgroundBuild(Recipe recipe);
  /// Stops the work and waits for its thread. A later start goes on at the missing files.
  ~BackgroundBuild();
  BackgroundBuild(const BackgroundBuild&) = delete;
  BackgroundBuild& operator=(const BackgroundBuild&) = delete;

  /// Error that ended the work; nothing while it goes on and when all files are made.
  std::optional<Error> error() const;
  bool is_done() const { return done_; }

 private:
  void work(const Recipe& recipe);

  std::atomic<bool> stop_{false}, done_{false};
  mutable std::mutex mutex_;
  std::optional<Error> error_;
  std::thread thread_;
};

}  // namespace ltrain
