#include "runtime/program/micro_batch_slots.h"

#include <vector>

#include "kernels/meta/placement_rules.h"
#include "models/moe/expert_adapters.h"
#include "runtime/program/preference_step.h"

namespace ltrain {
namespace {

/// Type of logits.
DType logits_type(const ProgramOptions& o) {
  return o.precision.compute == DType::f64 ? DType::f64 : DType::f32;
}

}  // namespace

MicroBatchSlots::MicroBatchSlots(const ProgramOptions& options, const ContextSharding& cut, int64_t count,
                                 Stream& stream, Memory& memory, const Groups& groups)
    : cut_(cut),
      count_(count),
      batch_(options.micro_batch),
      seq_length_(options.seq_length),
      rows_(options.micro_batch * cut.rows().rows),
      mtp_modules_(options.mtp_modules()),
      top_logits_(options.top_logits),
      stream_(stream),
      groups_(groups) {
  const int parts = groups.mesh.sequence_parts();
  LT_CHECK(
      batch_ % parts == 0,
      "expected the sequences of a micro-batch to divide over {} tensor-parallel ranks, got {} sequences",
      parts, batch_);
  const auto slots = [&](const char* name, DType t, int64_t elements) {
    return memory.allocate(MemoryKind::temporaries, name, t, {count_, elements});
  };
  tokens_ = slots("tokens", DType::i32, rows_);
  targets_ = slots("targets", DType::i32, rows_);
  if (mtp_modules_ > 0) {
    mtp_tokens_ = slots("later tokens", DType::i32, mtp_modules_ * rows_);
    mtp_targets_ = slots("later targets", DType::i32, mtp_modules_ * rows_);
  }
  sample_index_ = slots("sample index", DType::i64, batch_);
  if (drops_inputs_of_experts(options.model)) row_keys_ = slots("row keys", DType::i64, rows_);
  if (cut_.ranks > 1) {
    std::vector<int32_t> at;
    for (int64_t row = 0; row < cut_.rows().rows; ++row)
      at.push_back(static_cast<int32_t>(cut_.rows().at(row)));
    positions_ = memory.allocate(MemoryKind::temporaries, "positions", DType::i32, {cut_.rows().rows});
    upload(stream, positions_, at.data());
  }
  if (options.documents) documents_ = slots("documents", DType::i32, batch_ * seq_length_);
  if (options.position_ids) position_ids_ = slots("position ids", DType::i32, rows_);
  if (top_logits_ > 0) {
    logit_ids_ = slots("ids of recorded logits", DType::i32, rows_ * top_logits_);
    logit_values_ = slots("recorded logits", logits_type(options), rows_ * top_logits_);
    logit_rest_ = slots("sums of logits without a record", logits_type(options), rows_);
  }
  if (!options.preference) return;
  const int64_t texts = batch_ * data::max_segments(seq_length_);
  pair_texts_ = slots("texts", DType::i32, rows_);
  pair_references_ = slots("references", DType::f64, texts);
  pair_sums_ = slots("sums of texts", DType::f64, 2 * texts);
  if (options.preference->labelled()) pair_labels_ = slots("labels", DType::i32, texts / 2);
}

int64_t MicroBatchSlots::staging_bytes(const ProgramOptions& o, const ContextSharding& cut) {
  const int64_t rows = o.micro_batch * cut.rows().rows, whole = o.micro_batch * o.seq_length;
  int64_t bytes = 2 * Staging::room(rows * 4) + Staging::room(o.micro_batch * 8);
  if (drops_inputs_of_experts(o.model)) bytes += Staging::room(rows * 8);
  if (o.documents) bytes += Staging::room(whole * 4);
  if (o.position_ids) bytes += Staging::room(rows * 4);
  if (const int64_t all = rows * o.top_logits; all > 0) {
    const int64_t each = dtype_size(logits_type(o));
    bytes += Staging::room(all * 4) + Staging::room(all * each) + Staging::room(rows * each);
  }
  if (o.preference) bytes += pair_slot_bytes(rows, o.micro_batch, o.seq_length);
  return bytes + 2 * Staging::room(o.mtp_modules() * rows * 4);
}

PairBatch MicroBatchSlots::pairs(int64_t slot) const {
  PairBatch p;
  if (!pair_texts_.defined()) return p;
  const int64_t texts = pair_references_.cols();
  p.texts = pair_texts_.flat(slot * rows_, {rows_});
  p.references = pair_references_.flat(slot * texts, {texts});
  p.sums = pair_sums_.flat(2 * slot * texts, {texts, 2});
  if (pair_labels_.defined()) p.labels = pair_labels_.flat(slot * texts / 2, {texts / 2});
  return p;
}

TopLogits MicroBatchSlots::top_logits(int64_t slot) const {
  if (top_logits_ == 0) return {};
  const int64_t all = rows_ * top_logits_;
  return {.ids = logit_ids_.flat(slot * all, {rows_, top_logits_}),
          .values = logit_values_.flat(slot * all, {rows_, top_logits_}),
          .rest = logit_rest_.flat(slot * rows_, {rows_})};
}

MicroBatch MicroBatchSlots::text_rows(int64_t rows) const {
  MicroBatch mb;
  mb.seq = rows;
  mb.tokens = tokens_.flat(0, {rows});
  mb.targets = targets_.flat(0, {rows});
  mb.sample_index = sample_index_.flat(0, {1});
  return mb;
}

MicroBatch MicroBatchSlots::whole(int64_t slot) const {
  MicroBatch mb;
  mb.batch = batch_;
  mb.seq = cut_.rows().rows;
  mb.cut = cut_;
  mb.positions = positions_;
  if (documents_.defined())
    mb.documents = documents_.flat(slot * batch_ * seq_length_, {batch_, seq_length_});
  if (position_ids_.defined()) mb.position_ids = position_ids_.flat(slot * rows_, {rows_});
  mb.tokens = tokens_.flat(slot * rows_, {rows_});
  mb.targets = targets_.flat(slot * rows_, {rows_});
  mb.pairs = pairs(slot);
  mb.sample_index = sample_index_.flat(slot * batch_, {batch_});
  mb.target_samples = mb.sample_index;
  if (row_keys_.defined()) mb.row_keys = row_keys_.flat(slot * rows_, {rows_});
  if (const int64_t n = mtp_modules_ * rows_; n > 0) {
    mb.mtp_tokens = mtp_tokens_.flat(slot * n, {n});
    mb.mtp_targets = mtp_targets_.flat(slot * n, {n});
  }
  return mb;
}

RowSamples MicroBatchSlots::samples_of(const MicroBatch& whole, int64_t part) const {
  const int64_t n = whole.batch / groups_.mesh.sequence_parts();
  RowSamples r;
  r.sample_index = whole.sample_index.flat(part * n, {n});
  if (whole.documents.defined()) r.documents = whole.documents.narrow(part * n, n);
  if (whole.position_ids.defined())
    r.position_ids = whole.position_ids.flat(part * n * whole.seq, {n * whole.seq});
  return r;
}

MicroBatch MicroBatchSlots::micro_batch(int64_t slot) const {
  MicroBatch mb = whole(slot);
  if (groups_.one_d()) return mb;
  // Sequences are sharded over depth, then over row. Inside a 3D sublayer they are sharded over column
  // instead of row.
  const bool three_d = groups_.mesh.tensor_mode == TensorMode::three_d;
  const MicroBatch all = mb;
  const int ways = groups_.row.size();
  const int64_t parts = groups_.mesh.sequence_parts(), slice = groups_.depth.rank() * ways,
                mine = slice + groups_.row.rank();
  static_cast<RowSamples&>(mb) = samples_of(all, mine);
  if (three_d) mb.sublayer_rows = samples_of(all, slice + groups_.column.rank());
  mb.batch = all.batch / parts;
  mb.target_samples = three_d ? all.sample_index.flat(slice * mb.batch, {ways * mb.batch}) : mb.sample_index;
  const int64_t rows = mb.rows();
  mb.tokens = all.tokens.flat(slice * rows, {ways * rows});
  mb.targets =
      three_d ? all.targets.flat(slice * rows, {ways * rows}) : all.targets.flat(mine * rows, {rows});
  if (!stream_.meta()) return mb;
  mb.tokens = place_apart(stream_, mb.tokens, "tokens");
  mb.targets = place_apart(stream_, mb.targets, "targets");
  for (const Tensor& t : {mb.tokens, mb.targets}) place_set(stream_, t, Axis::depth, Placement::V());
  if (!three_d) place_set(stream_, mb.targets, Axis::row, Placement::S(0));
  return mb;
}

void MicroBatchSlots::load_top_logits(const data::Batch& batch, int64_t slot, Staging& staging) const {
  const TopLogits to = top_logits(slot);
  LT_CHECK(static_cast<int64_t>(batch.logit_ids.size()) == to.ids.elements(),
           "expected {} recorded logits in a batch, got {}", to.ids.elements(), batch.logit_ids.size());
  staging.put(to.ids, batch.logit_ids.data());
  for (const auto& [tensor, from] :
       {std::pair{&to.values, &batch.logit_values}, {&to.rest, &batch.logit_rest}}) {
    if (tensor->dtype == DType::f64) {
      staging.put(*tensor, from->data());
      continue;
    }
    const std::vector<float> narrow(from->begin(), from->end());
    staging.put(*tensor, narrow.data());
  }
}

void MicroBatchSlots::place_loaded(const MicroBatch& mb, const TopLogits& logits) const {
  for (const Tensor& t : {logits.ids, logits.values, logits.rest}) {
    if (!t.defined()) continue;
    place_set(stream_, t, kAllAxes, Placement::R());
    place_set(stream_, t, kGradientAxes, Placement::V());
  }
  for (const Tensor& t : {mb.tokens, mb.targets, mb.sample_index, mb.row_keys, mb.mtp_tokens, mb.mtp_targets})
    if (t.defined()) place_set(stream_, t, kAllAxes, Placement::R());
  for (const Tensor& t : {mb.tokens, mb.targets, mb.row_keys, mb.mtp_tokens, mb.mtp_targets})
    if (t.defined()) place_set(stream_, t, kGradientAxes, Placement::V());
  place_set(stream_, mb.sample_index, kDataAxes, Placement::V());
  place_pairs(stream_, mb.pairs);
}

std::vector<int64_t> MicroBatchSlots::row_keys(const data::Batch& batch) const {
  std::vector<int64_t> keys;
  const int64_t rows = cut_.rows().rows, length = cut_.ranks > 1 ? cut_.seq : rows;
  for (const int64_t sample : batch.sample_index)
    for (int64_t row = 0; row < rows; ++row)
      keys.push_back(row_key(sample * length + (cut_.ranks > 1 ? cut_.rows().at(row) : row)));
  return keys;
}

void MicroBatchSlots::load(const data::Batch& batch, int64_t slot, bool training, Staging& staging) {
  const MicroBatch mb = whole(slot);
  if (stream_.meta()) return place_loaded(mb, training ? top_logits(slot) : TopLogits{});
  LT_CHECK(static_cast<int64_t>(batch.sample_index.size()) == mb.batch,
           "expected {} samples in a batch, got {}", mb.batch, batch.sample_index.size());
  const auto put = [&](const Tensor& to, const std::vector<int32_t>& from, const char* what) {
    if (!to.defined()) return;
    LT_CHECK(static_cast<int64_t>(from.size()) == to.elements(), "expected {} {} in a batch, got {}",
             to.elements(), what, from.size());
    staging.put(to, from.data());
  };
  staging.open();
  put(mb.tokens, batch.tokens, "tokens");
  put(mb.targets, batch.targets, "targets");
  if (training) put(mb.mtp_tokens, batch.mtp_tokens, "later tokens");
  if (training) put(mb.mtp_targets, batch.mtp_targets, "later targets");
  if (training && top_logits_ > 0) load_top_logits(batch, slot, staging);
  staging.put(mb.sample_index, batch.sample_index.data());
  if (mb.row_keys.defined()) staging.put(mb.row_keys, row_keys(batch).data());
  put(mb.documents, batch.documents, "document starts");
  put(mb.position_ids, batch.position_ids, "position ids");
  put(mb.pairs.texts, batch.segments, "texts");
  put(mb.pairs.labels, batch.labels, "labels");
  if (mb.pairs.on()) staging.put(mb.pairs.references, batch.references.data());
  staging.close();
}

}  // namespace ltrain
