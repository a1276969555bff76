// What a checkpoint holds of a training run, and when it may be written.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/stream.h"
#include "parallel/comm/communicator.h"
#include "parallel/optim/loss_scale.h"
#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// The slices that this rank writes: "NAME" is the parameter (its fp32 master in bf16 runs),
/// "optimizer/exp_avg/NAME" and so on the states of its optimizer.
std::vector<StateSlice> state_slices(const ParameterStore& parameters);
/// Reads parameters only, or their averages in their place: for generation and evaluation.
void load_parameters(PieceReader& reader, ParameterStore& parameters, bool average = false);
/// Error (usage) when the checkpoint was saved by another optimizer.
void check_optimizer(const CheckpointReader& reader, const ParameterStore& parameters,
                     const OptimizerSettings& optimizer);
/// Host memory that a save's copy of this rank's slices takes, from where copies to the device go through.
Tensor checkpoint_staging(Memory& host, int64_t bytes);
ResumeOptions resume_options(const Recipe& recipe);
std::string checkpoint_folder(const Recipe& recipe);
/// false: the recipe asks for no checkpoint, not even at the end.
bool saves_at_all(const Recipe& recipe);
/// Saves that a run that is at `step` still makes until step `end`, the one of an early stop included.
int64_t saves_to_come(const Recipe& recipe, int64_t step, int64_t end);

class TensorReader;

/// How far a run is in its data.
struct DataPosition {
  int64_t cursor = 0;               ///< global index of the next sample
  int64_t samples = 0, tokens = 0;  ///< trained on since step 0, counted
  bool operator==(const DataPosition&) const = default;
};

class TrainingState {
 public:
  /// `control`: a group of all ranks that nothing else uses.
  TrainingState(const Recipe& recipe, ParameterStore& parameters, Communicator& control,
                Stream& control_stream, int rank);
  ~TrainingState();

  struct Resumed {
    bool loaded = false;  ///< false: the parameters are still to be initialised
    int64_t step = 0;
    DataPosition position;
    int64_t skipped_steps = 0;    ///< of `step`
    int64_t earlier_updates = 0;  ///< before step 0, that the optimizer's states are of
    std::optional<LossScaleState> loss_scale;
    int64_t bytes_read = 0;          ///< of tensors, by this rank
    std::vector<std::string> notes;  ///< for the user
  };
  /// Loads what checkpoint.resume asks for. An explicit resume that cannot be met is an error.
  Resumed resume();
  /// Of a fresh start: the state after the checkpoint's step, or of it the weights and the optimizer's
  /// states. Error (usage) when this recipe cannot go on from them.
  Resumed go_on(CheckpointReader& reader);
  Resumed take_states(CheckpointReader& reader);
  /// Of a fresh start whose parameters are initialised: the weights of checkpoint.upcycle. Returns notes.
  std::vector<std::string> upcycle();
  /// Takes the folder, checks the space for the saves after `step`, until step `end`. After resume(). `host`:
  /// where saves are copied to from a device with memory of its own; null: memory of the writer's own.
  /// Returns notes.
  std::vector<std::string> open_writer(int64_t step, int64_t end, Memory* host = nullptr);

  /// Of the last step: only finite states are saved.
  void note_health(double loss, double grad_norm);
  /// Mean loss of the held-out sets at `step`: a save of that step records it.
  void note_evaluation(int64_t step, double loss);
  /// What saves have of steps that made no update.
  void note_skips(int64_t skipped_steps, const std::optional<LossScaleState>& loss_scale);
  /// Saves the state after `step`: in the background, or before it returns with async_save: false. Error
  /// (no progress), and nothing is written, when an element of it is not finite.
  void save(int64_t step, const DataPosition& position);
  /// Collective, before the run ends because its numbers are not finite: the newest checkpoint that is
  /// healthy, and what to give to go on from it, or from the one before it where the run itself went on from
  /// the newest and has saved nothing since.
  std::string way_back();
  /// Lines for the user on saves that ended. A failed save is a line, not an error, unless it was the last.
  std::vector<std::string> poll();
  /// Waits for the save in flight; throws Error (storage) when the last save failed.
  std::vector<std::string> finish();
  int64_t last_committed() const { return last_committed_; }

 private:
  const data::DataIdentity& identity();
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
  int64_t last_committed_ = 0, begun_ = 0;
  std::string begun_path_;
  std::vector<std::string> damaged_;
  std::optional<data::DataIdentity> identity_;
  bool last_failed_ = false;
  std::string last_error_;
  std::unique_ptr<CheckpointWriter> writer_;
};

}  // namespace ltrain
