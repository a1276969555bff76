// Waits of a run for token files that `ltrain run` makes while it trains (data.shuffle_window).
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "kernels/tensor/stream.h"
#include "parallel/comm/communicator.h"
#include "runtime/data/batch_loader.h"

namespace ltrain {

/// Seconds that a run waited for the loader, and for token files that were not made yet.
struct DataWaits {
  double loader = 0, files = 0;
  DataWaits operator-(const DataWaits& o) const { return {loader - o.loader, files - o.files}; }
};

class FileWait {
 public:
  FileWait() = default;  ///< never waits: the files of the run all exist
  /// `group`: of all ranks.
  explicit FileWait(std::unique_ptr<Communicator> group);

  /// Waits until the token files of samples [first, end) exist for all ranks. All ranks call it, and return
  /// the same: false if a rank was asked to stop before. `say` prints a line on rank 0.
  bool wait(const data::BatchLoader& loader, int64_t first, int64_t end,
            const std::function<bool()>& asked_to_stop, const std::function<void(std::string)>& say);

  double seconds() const { return seconds_; }  ///< total time of the calls

 private:
  std::unique_ptr<Communicator> group_;
  std::unique_ptr<Stream> stream_;
  bool all_made_ = true;
  double seconds_ = 0;
};

}  // namespace ltrain
