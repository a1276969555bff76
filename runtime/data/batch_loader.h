// Micro-batches for one data-parallel rank, prefetched on a thread.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/positions.h"
#include "parallel/optim/diloco_settings.h"
#include "runtime/data/pair_segments.h"
#include "runtime/data/sample_packing.h"

namespace ltrain::data {

/// A sample as it was read.
struct ReadSample {
  int32_t source = 0;     ///< its number, in the order of union_of()
  int64_t in_source = 0;  ///< number of the sample in its source
  uint32_t crc = 0;       ///< CRC-32 of its seq_length + 1 tokens
};

/// A teacher's largest logits for samples of training data, recorded before
/// (runtime/distillation/top_logits.h).
class RecordedLogits {
 public:
  virtual ~RecordedLogits() = default;
  virtual int64_t top_k() const = 0;  ///< number for each position
  /// Reads those of a sample at `rows` of its positions, R of them: ids and values (R, k), rest (R). Throws
  /// Error (data) if they are damaged, or of a sample with other tokens. For several threads.
  virtual void read(const ReadSample& sample, const Positions& rows, int32_t* ids, double* values,
                    double* rest) const = 0;
};

/// One micro-batch in host memory.
struct Batch {
  std::vector<int32_t> tokens;   ///< [micro_batch * rows]; rows = seq_length without context parallelism
  std::vector<int32_t> targets;  ///< next tokens; -1 = not counted
  /// LoaderOptions::mtp_tokens: [n * micro_batch * rows], for k = 1..n the token k positions ahead (0 beyond
  /// the sample) and its next token. -1 = not counted: it is not counted as a next token either, or belongs
  /// to another document.
  std::vector<int32_t> mtp_tokens, mtp_targets;
  std::vector<int64_t>
      sample_index;  ///< [micro_batch] global sample index of each row; -1: padding, all targets -1
  /// Packing::attention_mask: [micro_batch * seq_length], for full sequences even with context parallelism:
  /// start position of the document at each position; 0 for a document that begins before the sample.
  std::vector<int32_t> documents;
  /// Packing::position_ids: same shape as tokens, from 0 in each document.
  std::vector<int32_t> position_ids;
  /// LoaderOptions::pairs: [micro_batch * rows], number of the text that a row's target belongs to, plus
  /// max_segments() for each earlier sample; -1: padding.
  std::vector<int32_t> segments;
  /// LoaderOptions::pairs: [micro_batch * max_segments()], the reference's sums, 0 without a reference.
  std::vector<double> references;
  /// LoaderOptions::labels: [micro_batch * max_segments() / 2], 1 for each pair of texts whose example is
  /// desirable.
  std::vector<int32_t> labels;
  /// LoaderOptions::logits, with R = micro_batch * rows: (R, k), (R, k) and (R).
  std::vector<int32_t> logit_ids;
  std::vector<double> logit_values, logit_rest;
  int64_t pairs = 0;             ///< LoaderOptions::pairs: pairs of the full samples
  std::vector<ReadSample> read;  ///< LoaderOptions::ledger: [micro_batch]
};

/// Treatment of document ends in a sequence with several documents: Megatron-LM's reset_attention_mask,
/// reset_position_ids and eod_mask_loss. An end-of-document token belongs to the document it ends. Its
/// target, the first token of the next document, counts unless `mask_loss`. Documents end after such a token
/// and at the positions in the index. `mode` other than concatenate: samples of whole documents
/// (DocumentSamples), in which padding is a document that does not count, and the last token of a full sample
/// of a longer document has that document's next token as its target.
struct Packing {
  bool attention_mask = false;  ///< tokens attend only within their document
  bool position_ids = false;    ///< positions restart at 0
  bool mask_loss = false;       ///< the target across a document end is not counted
  int64_t eod = -1;             ///< end-of-document token of data without a sidecar; -1: none
  SamplePacking mode = SamplePacking::concatenate;
  bool on() const { return attention_mask || position_ids || mask_loss; }
};

struct SourceSpec {
  std::string path;  ///< PREFIX of PREFIX.bin and PREFIX.idx, or with `files` a name for messages
  double weight = 1;
  std::vector<std::string> files = {};  ///< PREFIX of each token file, in their order; empty: `path` alone

  std::vector<std::string> token_files() const { return files.empty() ? std::vector{path} : files; }
};

/// Sources from a global sample on.
struct StageSpec {
  int64_t first_sample = 0;
  std::vector<SourceSpec> sources;
  int64_t sequence = 0;  ///< tokens of a sequence, like LoaderOptions::first_sequence
};

struct LoaderOptions {
  std::vector<SourceSpec> sources;
  std::vector<StageSpec> stages;  ///< later mixes, in ascending order of first_sample
  int64_t seq_length = 0, micro_batch = 0, global_batch = 0;  ///< batch sizes in samples
  /// Tokens of a sequence of `sources`, until the first stage: a divisor of seq_length. Sequences of a sample
  /// are told apart as documents are, by attention_mask and position_ids of `packing`; the last token of one
  /// has the first of the next as its target. 0: seq_length.
  int64_t first_sequence = 0;
  uint64_t seed = 0;
  int64_t shuffle_window = 0;    ///< token files of a source that are shuffled together (WindowOrder); 0: all
  int dp_rank = 0, dp_size = 1;  ///< among the ranks of its site
  SiteShare share;               ///< micro-batches of that site
  int64_t vocab_size = 0;        ///< vocabulary of the model; a token outside it is an error
  int prefetch = 4;              ///< micro-batches to prefetch, at least 1
  /// Rows of each sequence on this context-parallel rank; default: all.
  std::optional<Positions> rows;
  Packing packing;
  int64_t mtp_tokens = 0;  ///< additional tokens to predict beyond the next one
  bool pairs = false;      ///< documents are preference pairs, or with `labels` the two texts of examples
  bool scores = false;     ///< with `pairs`: the targets are the last tokens of texts, and no others
  bool labels = false;     ///< first tokens of texts have labels: SourceInfo::unpaired
  bool ledger = false;     ///< batches say what was read (Batch::read)
  std::shared_ptr<const PairReferences> references;  ///< sums for the texts of `sources`; null: zeros
  std::shared_ptr<const RecordedLogits> logits;      ///< logits for the samples of `sources`; null: none

  /// Evaluation: samples in file order, each at most once. Rows beyond eval_samples (0: all samples until the
  /// first source ends) are padding.
  bool eval = false;
  int64_t eval_samples = 0;
};

/// Token files of all sources: those that exist, each source's from its first one on, and all.
struct FileCounts {
  int64_t made = 0, all = 0;
};

/// Loads micro-batches. Row b of micro-step k on rank r, in the global batch that begins at sample g, is
/// sample g + share.at(k*dp_size + r)*micro_batch + b. Every dp_size therefore sees the same global batches
/// in the same order, in each site.
class BatchLoader {
 public:
  /// Opens and checks every source. `first_sample`: global index of the next sample, the cursor() of the run
  /// being resumed.
  BatchLoader(const LoaderOptions& options, int64_t first_sample);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  /// Returns the next micro-batch: micro_steps() of step 0, then of step 1, and so on without end. Swaps
  /// buffers with `out`, so that nothing is allocated after the first calls. Rethrows errors of the reading
  /// thread.
  void next(Batch& out);

  /// The first token file that a sample of [first, end) needs and that does not exist yet; "": all exist.
  /// Samples are asked for in ascending order. Throws Error (data) for a file that cannot be read.
  std::string missing_file(int64_t first, int64_t end) const;
  FileCounts file_counts() const;

  const LoaderOptions& options() const;
  int64_t cursor() const;                   ///< global index after the last complete step returned
  int64_t micro_steps() const;              ///< micro-batches per step
  int64_t total_samples_per_epoch() const;  ///< samples of all sources in the files opened so far
  int64_t eval_samples() const;             ///< eval only: number of samples without padding
  double wait_seconds() const;              ///< total time that next() waited
  int64_t buffer_bytes() const;             ///< host memory of this loader

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Host memory of a loader with these options.
int64_t loader_buffer_bytes(const LoaderOptions& options);

}  // namespace ltrain::data
