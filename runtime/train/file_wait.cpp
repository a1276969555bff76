#include "runtime/train/file_wait.h"

#include <chrono>
#include <thread>

#include "base/printable.h"
#include "base/progress.h"
#include "kernels/tensor/timeline.h"
#include "parallel/comm/host_collectives.h"

namespace ltrain {
namespace {

constexpr std::chrono::milliseconds kLook{200};
constexpr double kFirstSaySeconds = 1, kSaySeconds = 60;

}  // namespace

FileWait::FileWait(std::unique_ptr<Communicator> group)
    : group_(std::move(group)), stream_(make_worker_stream("token files")), all_made_(false) {}

bool FileWait::wait(const data::BatchLoader& loader, int64_t first, int64_t end,
                    const std::function<bool()>& asked_to_stop, const std::function<void(std::string)>& say) {
  if (all_made_) return true;
  const double begin = steady_seconds();
  double say_at = kFirstSaySeconds;
  for (;;) {
    const std::string missing = loader.missing_file(first, end);
    const data::FileCounts files = loader.file_counts();
    // Ranks see a new file at different times. The step begins when all of them have what they need, and
    // nobody asks again once all ranks have all files.
    const auto any = max_over(*group_, *stream_, {!missing.empty(), asked_to_stop(), files.made < files.all});
    all_made_ = any[2] == 0;
    const double waited = steady_seconds() - begin;
    if (any[0] == 0 || any[1] != 0) {
      seconds_ += waited;
      if (say_at > kFirstSaySeconds) say(fmt::format("waited {:.1f} s for token files", waited));
      return any[0] == 0;
    }
    if (waited >= say_at) {
      say_at = waited + kSaySeconds;
      say(fmt::format("waiting for token files: {} ({} of {} made)",
                      missing.empty() ? "on another node" : printable(missing, 200), files.made, files.all));
    }
    note_progress();  // the launcher watches the work, and ends the job when it fails
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace ltrain
