// The step program: what one optimizer step and one evaluation step do, on whatever device the streams are.
// `ltrain plan` runs it on meta, `ltrain run` on cpu; there is no other description of a step.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "models/decoder.h"
#include "parallel/groups.h"
#include "runtime/data/batch_loader.h"

namespace ltrain {

struct ProgramOptions {
  ModelConfig model;
  PrecisionPolicy precision;
  int zero_stage = 0;
  int64_t bucket_elements = 4 << 20;
  int64_t micro_batch = 1, seq_length = 1, accumulation = 1;
  uint64_t seed = 1234;
  double clip_grad = 1.0;        ///< 0: no clipping
  bool decay_embeddings = true;  ///< weight decay applies to embeddings too
  bool sequence_parallel = false;
  ContextComm context_comm = ContextComm::p2p;  ///< with several context ranks
  int context_inner = 1;                        ///< a2a+p2p: ranks that exchange
  bool documents = false;                       ///< batches say where documents begin, and attention heeds it
  bool position_ids = false;                    ///< batches have positions of their own
  bool for_training = true;
};

using HostBatch = data::Batch;

/// The device side of a rank.
struct Device {
  Stream& compute;
  Memory& memory;
  const Groups& groups;
};

struct StepResult {
  double loss = 0;              ///< mean over counted tokens of the global batch
  double grad_norm = 0;         ///< before clipping
  int64_t tokens = 0;           ///< counted, global
  bool finite = true;           ///< false: no update was made
  bool stop_requested = false;  ///< some rank asked to stop
};

class TrainProgram {
 public:
  TrainProgram(const ProgramOptions& options, Device device);

  const ProgramOptions& options() const { return options_; }
  ParameterStore& parameters() { return store_; }
  const Decoder& decoder() const { return decoder_; }

  /// This rank's part of each sequence.
  const SequenceCut& sequence_cut() const { return cut_; }

  void initialize() { store_.initialize(options_.seed); }

  /// One optimizer step over `accumulation` micro-batches. `ask_stop` is agreed on: the result has it if any
  /// rank set it. Deterministic: the bits depend on the batches and the state alone.
  StepResult train_step(const std::vector<HostBatch>& batches, const AdamwArgs& adamw, bool ask_stop);

  /// Mean loss over the batches that `next` gives, and those of the other data ranks, until it returns null.
  /// All ranks give equally many. On meta without `next`: one batch.
  double evaluate(const std::function<const HostBatch*()>& next);

  /// logits (V) on the host for what follows `tokens`, at most seq_length of them; micro_batch is 1. On meta:
  /// the memory of the longest sequence.
  std::vector<float> predict(const std::vector<int32_t>& tokens);

 private:
  MicroBatch load(const HostBatch& batch);
  Step make_step(bool training);
  /// Sum of `counted` over the ranks that see different tokens.
  int64_t agree_tokens(int64_t counted);
  void clear_sums();
  void all_reduce(const Group& group, Tensor t);
  /// Sums loss and squares over all ranks, counting once what several have.
  void reduce_sums(const char* reading);

  ProgramOptions options_;
  Device device_;
  ParameterStore store_;
  Decoder decoder_;
  SequenceCut cut_;
  Tensor tokens_, targets_, sample_index_;
  Tensor positions_, documents_, position_ids_;  // as in MicroBatch; undefined where not wanted
  Tensor sums_;                                  // (4) f64: the next three, and ranks that ask to stop
  Tensor loss_;                                  // sum of token losses
  Tensor cut_squares_, whole_squares_;           // of gradients, as add_grad_squares
  Tensor count_;                                 // (1) i64
};

/// fp32 | bf16 | fp64
PrecisionPolicy precision_policy(const std::string& name);

}  // namespace ltrain
