// Micro-batches for one data-parallel rank, read ahead on a thread.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/positions.h"

namespace ltrain::data {

/// One micro-batch on the host.
struct Batch {
  std::vector<int32_t> tokens;   ///< [micro_batch * rows]; rows = seq_length unless the sequence is cut
  std::vector<int32_t> targets;  ///< next tokens; -1 = not counted
  /// LoaderOptions::mtp_tokens: [n * micro_batch * rows], by k = 1..n the token k places on, 0 where the
  /// sample has none, and the one behind it; -1 = not counted: nor is it as a next token, or it is of another
  /// document.
  std::vector<int32_t> mtp_tokens, mtp_targets;
  std::vector<int64_t>
      sample_index;  ///< [micro_batch] global sample index of each row; -1: padding, all targets -1
  /// Packing::attention_mask: [micro_batch * seq_length], whole sequences whatever the cut: the position at
  /// which the document of each position begins, 0 for one that begins before the sample.
  std::vector<int32_t> documents;
  std::vector<int32_t> position_ids;  ///< Packing::position_ids: as tokens, from 0 in each document
};

/// What a document's end means to a sequence that holds several. Megatron-LM's reset_attention_mask,
/// reset_position_ids and eod_mask_loss: an end-of-document token belongs to the document that it ends; its
/// target, the first token of the next document, counts unless `mask_loss`. Documents end behind such a token
/// and where the index says.
struct Packing {
  bool attention_mask = false;  ///< tokens see their own document alone
  bool position_ids = false;    ///< positions start again at 0
  bool mask_loss = false;       ///< the target across an end is not counted
  int64_t eod = -1;             ///< end-of-document token of data without a sidecar; -1: none
  bool on() const { return attention_mask || position_ids || mask_loss; }
};

struct SourceSpec {
  std::string path;  ///< PREFIX of PREFIX.bin and PREFIX.idx
  double weight = 1;
};

struct LoaderOptions {
  std::vector<SourceSpec> sources;
  int64_t seq_length = 0, micro_batch = 0, global_batch = 0;  ///< batches in samples
  uint64_t seed = 0;
  int dp_rank = 0, dp_size = 1;
  int64_t vocab_size = 0;  ///< of the model: a token outside it is an error
  int prefetch = 4;        ///< micro-batches read ahead, at least 1
  /// The rows of each sequence that this rank of context parallelism has; default: all.
  std::optional<Positions> rows;
  Packing packing;
  int64_t mtp_tokens = 0;  ///< tokens beyond the next one that are to be predicted, too

  /// Evaluation: samples in the order of the files, each at most once. Rows beyond eval_samples (0: all that
  /// there are before the first source runs out) are padding.
  bool eval = false;
  int64_t eval_samples = 0;
};

/// Row b of micro-step k on rank r, in the global batch that begins at sample g, is sample
/// g + (k*dp_size + r)*micro_batch + b: every dp_size sees the same global batches in the same order.
class BatchLoader {
 public:
  /// Opens and checks every source. `first_sample`: the global index of the next sample, as cursor() of the
  /// run that is being continued.
  BatchLoader(const LoaderOptions& options, int64_t first_sample);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  /// The next micro-batch: micro_steps() of step 0, then of step 1, and so on without end. Swaps buffers with
  /// `out`, so that nothing is allocated after the first calls. Rethrows errors of the reading thread.
  void next(Batch& out);

  int64_t cursor() const;                   ///< global index after the last whole step handed out
  int64_t micro_steps() const;              ///< micro-batches per step
  int64_t total_samples_per_epoch() const;  ///< of all sources together, each once
  int64_t eval_samples() const;             ///< eval only: samples that are not padding
  double wait_seconds() const;              ///< time that next() spent waiting, in all
  int64_t buffer_bytes() const;             ///< host memory that it holds

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Host memory of a loader with these options, before there is one.
int64_t loader_buffer_bytes(const LoaderOptions& options);

}  // namespace ltrain::data
