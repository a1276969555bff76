// Training data of one rank: the loader of its batches, the wait for token files that are made meanwhile,
// and the ledger of samples.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "runtime/launch/job.h"
#include "runtime/recipe/recipe.h"
#include "runtime/train/file_wait.h"
#include "runtime/train/sample_ledger.h"

namespace ltrain {

/// Loader options of a rank's training data, without references of preferences.
data::LoaderOptions training_options(const Recipe& recipe, const Mesh& mesh);

class TrainingData {
 public:
  /// Collective. The next sample is number `cursor`; steps up to `step` are trained.
  TrainingData(const Recipe& recipe, const Mesh& mesh, Job& job, const data::LoaderOptions& options,
               int64_t step, int64_t cursor);

  /// Goes on with other options at sample `cursor`.
  void reopen(const data::LoaderOptions& options, int64_t cursor);

  /// Goes on at sample `cursor`.
  void seek(int64_t cursor);

  /// Waits until the token files of samples [first, end) exist, as FileWait::wait() does.
  bool wait(int64_t first, int64_t end, const std::function<bool()>& asked_to_stop,
            const std::function<void(std::string)>& say) {
    return file_wait_.wait(*loader_, first, end, asked_to_stop, say);
  }
  /// Reads the `micros` micro-batches of a step, and fills `batches` with number `place` and each count-th
  /// after it: those of one of `count` replicas.
  void read(std::vector<data::Batch>& batches, int64_t micros, int place = 0, int count = 1);
  /// Notes that a step was trained on `batches`, after which the next sample is number `cursor`.
  void trained(int64_t step, const std::vector<data::Batch>& batches, int64_t cursor);

  DataWaits waits() const { return {earlier_wait_ + loader_->wait_seconds(), file_wait_.seconds()}; }
  /// Sentences for the user about a full disk.
  std::vector<std::string> notes() { return ledger_ ? ledger_->notes() : std::vector<std::string>{}; }

 private:
  void open_ledger();

  std::string output_dir_;
  int rank_;
  bool writes_;  // the first of the ranks with its data
  std::unique_ptr<data::BatchLoader> loader_;
  double earlier_wait_ = 0;  // waits of earlier loaders
  FileWait file_wait_;
  std::optional<SampleLedger> ledger_;
};

}  // namespace ltrain
