// Training state in a checkpoint, and the rules for when it may be written.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/stream.h"
#include "parallel/comm/communicator.h"
#include "parallel/optim/loss_scale.h"
#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/after_save.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/remote_copies.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Slices that this rank writes. "NAME" is the parameter (its fp32 master weights in bf16 runs).
/// "optimizer/exp_avg/NAME" and similar names are its optimizer state; "optimizer/exp_avg_site_00001/NAME" is
/// that of another site than the first (DiLoCo), which writes the rest.
std::vector<StateSlice> state_slices(const ParameterStore& parameters);
/// Reads only parameters, or their EMA with `average`. For generation and evaluation.
void load_parameters(PieceReader& reader, ParameterStore& parameters, bool average = false);
/// Throws Error (usage) if the checkpoint was saved by another optimizer.
void check_optimizer(const CheckpointReader& reader, const ParameterStore& parameters,
                     const OptimizerSettings& optimizer);
/// Host memory for a save's copy of this rank's slices, allocated from the memory used for device copies.
Tensor checkpoint_staging(Memory& host, int64_t bytes);
ResumeOptions resume_options(const Recipe& recipe);
std::string checkpoint_folder(const Recipe& recipe);
/// Returns false if the recipe requests no checkpoint at all, not even at the end.
bool saves_at_all(const Recipe& recipe);
/// Number of saves that a run makes between `step` and `end`, including one for an early stop.
int64_t saves_to_come(const Recipe& recipe, int64_t step, int64_t end);

class TensorReader;

/// Position of a run in its data.
struct DataPosition {
  int64_t cursor = 0;               ///< global index of the next sample
  int64_t samples = 0, tokens = 0;  ///< totals since step 0
  bool operator==(const DataPosition&) const = default;
};

class TrainingState {
 public:
  /// `control`: a group of all ranks, used by this object only.
  TrainingState(const Recipe& recipe, ParameterStore& parameters, Communicator& control,
                Stream& control_stream, int rank);
  ~TrainingState();

  struct Resumed {
    bool loaded = false;  ///< false: the caller must initialize the parameters
    int64_t step = 0;
    DataPosition position;
    int64_t skipped_steps = 0;    ///< steps in `step` without an update
    int64_t earlier_updates = 0;  ///< updates in the optimizer state before step 0
    std::optional<LossScaleState> loss_scale;
    int64_t bytes_read = 0;          ///< bytes of tensors read by this rank
    std::vector<std::string> notes;  ///< notes for the user
  };
  /// Loads the checkpoint selected by checkpoint.resume, after the one of checkpoint.remote is downloaded if
  /// it is newer. Throws if an explicit checkpoint cannot be loaded.
  Resumed resume();
  /// For a fresh start. go_on continues after the step of the checkpoint. take_states loads only weights and
  /// optimizer state. Both throw Error (usage) if this recipe cannot continue from them.
  Resumed go_on(CheckpointReader& reader);
  Resumed take_states(CheckpointReader& reader);
  /// For a fresh start with initialized parameters: loads the weights of checkpoint.upcycle. Returns notes.
  std::vector<std::string> upcycle();
  /// Locks the folder and checks the space for the saves from `step` to `end`. Call it after resume().
  /// `host`: staging memory for a device with its own memory; null: the writer allocates it. Returns notes.
  std::vector<std::string> open_writer(int64_t step, int64_t end, Memory* host = nullptr);

  /// Sets the health of the last step. Only finite states are saved.
  void note_health(double loss, double grad_norm);
  /// Mean loss of the held-out sets at `step`. A save of that step records it.
  void note_evaluation(int64_t step, double loss);
  /// Sets the number of steps without an update and the loss scale for later saves.
  void note_skips(int64_t skipped_steps, const std::optional<LossScaleState>& loss_scale);
  /// Saves the state after `step`, in the background unless async_save is false. If an element is not finite,
  /// it writes nothing and throws Error (no progress).
  void save(int64_t step, const DataPosition& position);
  /// Collective over `group`, of which rank 0 reads the folder. Called before the run ends because of values
  /// that are not finite. Returns the newest healthy checkpoint and the recipe keys to resume from it. If the
  /// run itself resumed from the newest and has saved nothing since, it returns the one before.
  std::string way_back(Communicator& group);
  /// Lines for the user about finished saves. A failed save is a line and not an error, unless it was the
  /// last.
  std::vector<std::string> poll();
  /// Waits for the save in flight, for its upload, and for its telemetry.on_save, which a run that was asked
  /// to stop ends. Throws Error (storage) if the last save or upload failed.
  std::vector<std::string> finish(bool stopping);
  int64_t last_committed() const { return last_committed_; }

  /// Collective at its first call.
  const data::DataIdentity& identity();
  /// The data of the recipe have changed.
  void change_identity(data::DataIdentity now) { identity_ = std::move(now); }

 private:
  std::unique_ptr<CheckpointReader> open_newest(std::vector<std::string>& notes);
  /// Takes checkpoint.remote for the copies of this run's saves, on rank 0.
  void open_copies(const CheckpointOptions& writer);
  Resumed read(CheckpointReader& reader);
  bool resume_errors(const CheckpointReader& reader, TensorReader& tensors);
  bool of_frozen_parameter(const std::string& name) const;
  const Recipe& recipe_;
  ParameterStore& parameters_;
  Communicator& control_;
  Stream& stream_;
  int rank_;
  double loss_ = 0, grad_norm_ = 0;
  int64_t evaluated_step_ = -1;
  double eval_loss_ = 0;
  int64_t skipped_steps_ = 0, earlier_updates_ = 0;
  std::optional<LossScaleState> loss_scale_;
  std::optional<AfterSave> command_;    // rank 0 with telemetry.on_save
  std::optional<RemoteCopies> copies_;  // rank 0 with checkpoint.remote, once the writer is open
  int64_t last_committed_ = 0, begun_ = 0;
  std::string begun_path_;
  std::vector<std::string> damaged_;
  std::optional<data::DataIdentity> identity_;
  bool last_failed_ = false;
  std::string last_error_;
  std::unique_ptr<CheckpointWriter> writer_;
};

}  // namespace ltrain
