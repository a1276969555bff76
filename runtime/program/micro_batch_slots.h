// Device tensors of the micro-batches in flight, and their way from the host.
#pragma once
#include <cstdint>

#include "kernels/tensor/staging.h"
#include "models/layers/step.h"
#include "parallel/mesh/groups.h"
#include "runtime/data/batch_loader.h"
#include "runtime/program/program_options.h"

namespace ltrain {

class MicroBatchSlots {
 public:
  /// Allocates `count` slots, each for one micro-batch of this rank.
  MicroBatchSlots(const ProgramOptions& options, const ContextSharding& cut, int64_t count, Stream& stream,
                  Memory& memory, const Groups& groups);

  int64_t count() const { return count_; }
  /// Rows of all slots together.
  int64_t rows() const { return count_ * rows_; }
  /// Bytes of a staging slot through which one micro-batch is copied.
  static int64_t staging_bytes(const ProgramOptions& options, const ContextSharding& cut);

  /// Copies a batch into a slot. `training`: with the later tokens of multi-token prediction. On meta only
  /// sets the placements.
  void load(const data::Batch& batch, int64_t slot, bool training, Staging& staging);
  /// This rank's micro-batch in a slot, without sums, statistics and scales.
  MicroBatch micro_batch(int64_t slot) const;
  /// Preference pairs in a slot, without the settings of their loss.
  PairBatch pairs(int64_t slot) const;
  /// Recorded logits of a teacher in a slot; undefined without them.
  TopLogits top_logits(int64_t slot) const;
  /// The first rows of the slots as rows of texts, for generation; without positions.
  MicroBatch text_rows(int64_t rows) const;

 private:
  /// The full micro-batch in a slot: with 2D and 3D tensor parallelism also sequences of other ranks.
  MicroBatch whole(int64_t slot) const;
  /// Part `part` of the sequences of a full micro-batch.
  RowSamples samples_of(const MicroBatch& whole, int64_t part) const;
  void place_loaded(const MicroBatch& mb, const TopLogits& logits) const;
  void load_top_logits(const data::Batch& batch, int64_t slot, Staging& staging) const;

  std::vector<int64_t> row_keys(const data::Batch& batch) const;

  ContextSharding cut_;
  int64_t count_, batch_, seq_length_, rows_, mtp_modules_, top_logits_;
  Stream& stream_;
  const Groups& groups_;
  // Dim 0 of all but positions_ is the slot.
  Tensor tokens_, targets_, sample_index_;
  Tensor row_keys_;                               // defined if adapters of experts have dropout
  Tensor mtp_tokens_, mtp_targets_;               // tokens of multi-token prediction
  Tensor positions_;                              // (rows) MicroBatch::positions; with context parallelism
  Tensor documents_, position_ids_;               // defined if batches have them
  Tensor logit_ids_, logit_values_, logit_rest_;  // TopLogits; defined with top_logits_ above 0
  // Defined if batches have preference pairs; labels: with kto.
  Tensor pair_texts_, pair_references_, pair_sums_, pair_labels_;
};

}  // namespace ltrain
