#include "models/decoder/block.h"

#include <cmath>
#include <utility>

#include "kernels/elementwise/tensor_ops.h"

namespace ltrain {
namespace {

bool same(const Tensor& a, const Tensor& b) { return a.data == b.data && a.record == b.record; }

std::vector<Tensor*> with(Tensor& more, std::vector<Tensor*> tensors) {
  tensors.push_back(&more);
  return tensors;
}

}  // namespace

std::vector<Tensor*> Block::Saved::tensors(BlockTensor which) {
  switch (which) {
    case BlockTensor::attention_norm:
      return {&norm1.y};
    case BlockTensor::qkv:
      return {&attention.qkv,
              &attention.query,
              &attention.query_rstd,
              &attention.key,
              &attention.key_rstd,
              &attention.latent.query.x,
              &attention.latent.query.y,
              &attention.latent.query.rstd,
              &attention.latent.key_value.x,
              &attention.latent.key_value.y,
              &attention.latent.key_value.rstd};
    case BlockTensor::attention:
      return {&attention.out, &attention.lse, &attention.exchanged_out};
    case BlockTensor::residual:
      return {&norm2.x};
    case BlockTensor::mlp_norm:
      return {&norm2.y};
    case BlockTensor::permuted_tokens:
      return moe.of_chunks([](MoeLayer::Chunk& c) { return &c.rows; });
    case BlockTensor::mlp_hidden:
      return with(mlp.hidden, moe.of_chunks([](MoeLayer::Chunk& c) { return &c.hidden; }));
    case BlockTensor::mlp_activation:
      return with(mlp.act, moe.of_chunks([](MoeLayer::Chunk& c) { return &c.act; }));
    case BlockTensor::expert_output:
      return moe.of_chunks([](MoeLayer::Chunk& c) { return &c.dispatched.out; });
  }
  return {};
}

std::vector<Tensor*> Block::Saved::not_recomputed(BlockTensor which) {
  switch (which) {
    case BlockTensor::permuted_tokens:
      return moe.of_copies([](MoeLayer::Chunk& c) { return &c.rows; });
    case BlockTensor::mlp_hidden:
      return with(moe.shared.hidden, moe.of_copies([](MoeLayer::Chunk& c) { return &c.hidden; }));
    case BlockTensor::mlp_activation:
      return with(moe.shared.act, moe.of_copies([](MoeLayer::Chunk& c) { return &c.act; }));
    case BlockTensor::expert_output:
      return with(moe.shared_out, moe.of_copies([](MoeLayer::Chunk& c) { return &c.dispatched.out; }));
    default:
      return {};
  }
}

void Block::offload(Step& step, Saved& saved, const ActivationOffloadOptions& o) const {
  std::vector<Tensor*> tensors;
  if (o.input) tensors.push_back(&saved.norm1.x);
  for (int i = 0; i < kBlockTensors; ++i)
    if (const BlockTensor t = static_cast<BlockTensor>(i); o.tensors.has(t))
      for (const std::vector<Tensor*>& of : {saved.tensors(t), saved.not_recomputed(t)})
        tensors.insert(tensors.end(), of.begin(), of.end());
  for (Saved::Compressed& c : saved.compressed)
    if (o.tensors.has(c.which)) tensors.insert(tensors.end(), {&c.codes.codes, &c.codes.scales});
  step.enter(place_ + ".offload");
  step.offloaded->offload(saved.offloaded, tensors);
}

void Block::declare(ParameterStore& store, const Groups& groups, const ModelConfig& c, bool sp,
                    bool expert_tensor, const DispatchOptions& dispatch, int64_t i) {
  place_ = c.place(i);
  dropout_ = c.resid_pdrop;
  // Standard deviation of projections into the residual stream (GPT-2; Megatron-LM's
  // scaled_init_method_normal).
  const double out_std = c.initializer_range / (c.scaled_init ? std::sqrt(2.0 * c.num_hidden_layers) : 1.0);
  const ParameterNames& names = c.names();
  const std::string p = names.layer(i) + ".";
  const auto norm = [&](NormLayer& layer, const std::string& name) {
    layer.declare(store, groups, p + name, c.traits(), c.hidden_size, c.norm_eps, sp);
  };
  const NormPlacement at = c.traits().norm_placement;
  const bool both = at == NormPlacement::both;
  norms_after_ = at != NormPlacement::before;
  norm(at == NormPlacement::after ? after1_ : norm1_, names.attention_norm);
  attention_.declare(store, groups, c, sp, p + names.attention, place_ + ".attention", out_std, i);
  if (both) norm(after1_, names.attention_output_norm);
  norm(at == NormPlacement::after ? after2_ : norm2_, names.feed_forward_norm);
  is_moe_ = c.has_experts(i);
  if (is_moe_)
    moe_.declare(store, groups, c, sp, expert_tensor, dispatch, p + names.moe, i, out_std);
  else
    mlp_.declare(store, groups, c, sp, p + names.feed_forward, out_std);
  if (both) norm(after2_, names.feed_forward_output_norm);
}

void Block::quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int first_slot,
                              std::vector<Fp8Weight>& weights) {
  attention_.quantize_operands(store, settings, first_slot, weights);
  norm1_.feeds(attention_.input_slot());
  // Before experts there is a router, which reads unquantized input.
  if (is_moe_) return moe_.quantize_operands(store, settings, first_slot, weights);
  mlp_.quantize_operands(store, settings, first_slot, weights);
  norm2_.feeds(mlp_.input_slot());
}

void Block::forward(Step& step, const MicroBatch& mb, Residual& r, Tensor rope_table, Saved& saved,
                    const Keep& keep) const {
  const RunningBatch running(step, mb);
  const auto drop = [&](BlockTensor which) {
    compress(step, mb, saved, which, keep);
    if (keep.without.has(which))
      for (Tensor* t : saved.tensors(which)) step.release(*t);
  };
  step.enter(place_ + ".attention");
  norm1_.forward(step, r, saved.norm1, keep.input);
  if (mb.observer) mb.observer->residual(step.compute, saved.norm1.x);
  r.delta = sublayer_output(step, "attention output", saved.norm1.x.shape);
  attention_.forward(step, mb, r.delta, norm1_.output(saved.norm1), rope_table, saved.attention);
  norm_output(step, after1_, r.delta, saved.after1);
  if (step.groups.context.size() > 1 &&
      (keep.without.has(BlockTensor::qkv) || keep.without.has(BlockTensor::attention)))
    for (BlockTensor which : {BlockTensor::qkv, BlockTensor::attention})  // ranks exchanged both together
      for (Tensor* t : saved.tensors(which)) step.release(*t);
  drop(BlockTensor::qkv);
  drop(BlockTensor::attention);
  drop(BlockTensor::attention_norm);
  if (!step.keeps()) step.release(saved.norm1.y);
  r.dropout = step.dropout(dropout_, place_ + ".attention.output", mb);

  step.enter(place_ + ".mlp");
  norm2_.forward(step, r, saved.norm2);
  // The backward of a norm of the output reads it.
  if (keep.output || norms_after_) r.delta = sublayer_output(step, "mlp output", saved.norm2.x.shape);
  if (is_moe_) {
    moe_.forward(step, mb, r.delta, norm2_.output(saved.norm2), saved.moe, keep.recompute);
  } else {
    mlp_.forward(step, r.delta, norm2_.output(saved.norm2), mb.rows(), saved.mlp);
  }
  norm_output(step, after2_, r.delta, saved.after2);
  if (!keep.output) step.release(r.delta);
  drop(BlockTensor::mlp_hidden);
  drop(BlockTensor::mlp_activation);
  drop(BlockTensor::mlp_norm);
  if (!step.keeps()) step.release(saved.norm2.y);
  compress(step, mb, saved, BlockTensor::residual, keep);
  if (keep.without.has(BlockTensor::residual) ||
      keep.compressed.has(BlockTensor::residual)) {  // released when the next norm has added to it
    r.kept = false;
    saved.norm2.x = Tensor();
  }
  r.dropout = step.dropout(dropout_, place_ + ".mlp.output", mb);
}

void Block::compress(Step& step, const MicroBatch& mb, Saved& saved, BlockTensor which,
                     const Keep& keep) const {
  Tensor* const t = saved.tensors(which).front();
  if (!step.keeps() || !t->defined() || !keep.compressed.has(which)) return;
  // Gate and up have groups of their own, so that these are the same on each tensor-parallel rank.
  const bool hidden = which == BlockTensor::mlp_hidden,
             inner = hidden || which == BlockTensor::mlp_activation;
  const int sections = hidden ? mlp_.hidden_sections() : 1;
  const std::string name(block_tensor_name(which));
  RowRandom random = step.random(place_ + "." + name, mb, inner ? step.whole_rows(mb) : step.row_map(mb));
  if (inner) random.part = step.groups.tensor.rank(), random.parts = step.groups.tensor.size();
  Saved::Compressed c{which, t->shape, {}};
  c.codes.sections = sections;
  c.codes.codes = step.memory.allocate(MemoryKind::activations, name + " codes",
                                       keep.compressed.fp8.has(which) ? DType::f8e4m3 : DType::u8, t->shape);
  c.codes.scales = step.statistic(name + " scales", {t->shape[0], group_count(t->shape[1], sections)});
  encode_groups(step.compute, c.codes, *t, random);
  saved.compressed.push_back(c);
  if (which != BlockTensor::residual) step.release(*t);  // the next norm adds to the residual first
}

void Block::decompress(Step& step, Saved& saved) const {
  for (Saved::Compressed& c : saved.compressed) {
    Tensor* const t = saved.tensors(c.which).front();
    *t = step.activation(block_tensor_name(c.which), c.shape);
    decode_groups(step.compute, *t, c.codes);
    step.release(c.codes.codes);
    step.release(c.codes.scales);
  }
  saved.compressed.clear();
}

void Block::recompute(Step& step, const MicroBatch& mb, Tensor rope_table, Saved& saved) const {
  const RunningBatch running(step, mb);
  if (!saved.compressed.empty()) {
    step.enter(place_ + ".decompress");
    decompress(step, saved);
  }
  step.enter(place_ + ".attention");
  AttentionLayer::Saved& attention = saved.attention;
  if (!saved.norm1.y.defined()) norm1_.recompute(step, saved.norm1);
  attention_.recompute(step, mb, norm1_.output(saved.norm1), rope_table, attention);
  step.enter(place_ + ".mlp");
  if (!saved.norm2.x.defined()) {
    Residual r;
    r.x = saved.norm1.x;
    r.kept = true;
    if (norms_after_) {
      after1_.recompute(step, saved.after1);
      r.delta = std::exchange(saved.after1.y, Tensor());
    } else {
      r.delta = step.temporary("attention output", saved.norm1.x.shape);
      attention_.output(step, r.delta, attention);
    }
    r.dropout = step.dropout(dropout_, place_ + ".attention.output", mb);
    if (!saved.norm2.y.defined()) {
      step.release(saved.norm2.rstd);
      step.release(saved.norm2.mean);
      norm2_.forward(step, r, saved.norm2);
    } else {
      saved.norm2.x = step.activation("residual", r.x.shape);
      residual_add(step.compute, saved.norm2.x, r.x, r.delta, r.dropout);
      step.release(r.delta);
    }
  } else if (!saved.norm2.y.defined()) {
    norm2_.recompute(step, saved.norm2);
  }
  if (!is_moe_) mlp_.recompute(step, norm2_.output(saved.norm2), mb.rows(), saved.mlp);
}

Tensor Block::through_dropout(Step& step, const MicroBatch& mb, Tensor dx, const char* which) const {
  const Dropout d = step.dropout(dropout_, place_ + which, mb);
  const bool copied = step.deferred && !step.cuts_rows();  // gathered rows are a copy anyway
  if (!d.on() && !copied) return dx;
  Tensor t = step.temporary("d dropout", dx.shape);
  if (d.on()) {
    dropout(step.compute, t, dx, d);
  } else {
    cast(step.compute, t, dx);
  }
  return t;
}

Tensor Block::sublayer_output(Step& step, const char* name, const Shape& shape) const {
  return norms_after_ ? step.activation(name, shape) : step.temporary(name, shape);
}

void Block::norm_output(Step& step, const NormLayer& norm, Tensor& delta, NormLayer::Saved& saved) const {
  if (!norms_after_) return;
  Residual r;
  r.x = delta;
  r.kept = true;
  norm.forward(step, r, saved);
  delta = std::exchange(saved.y, Tensor());
  if (!step.keeps()) step.release(saved.x);
}

Tensor Block::norm_output_backward(Step& step, const NormLayer& norm, Tensor dout, Tensor dx,
                                   NormLayer::Saved& saved) const {
  if (!norms_after_) return dout;
  Tensor t = step.temporary("d sublayer output", dout.shape);
  norm.backward(step, t, dout, saved, /*first=*/true);
  if (!same(dout, dx)) step.release(dout);
  return t;
}

void Block::backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor rope_table, Saved& saved) const {
  const RunningBatch running(step, mb);
  // Weight gradients of the projections out of both sublayers. The sum at the end of attention's backward has
  // too little compute to overlap with, the feed-forward's has enough.
  WeightGradients hiding;
  if (!step.deferred) step.hiding = &hiding;
  step.enter(place_ + ".mlp");
  Tensor dout = through_dropout(step, mb, dx, ".mlp.output");
  dout = norm_output_backward(step, after2_, dout, dx, saved.after2);
  Tensor dnorm = step.temporary("d norm", dx.shape);
  if (is_moe_) {
    moe_.backward(step, mb, dnorm, dout, norm2_.output(saved.norm2), saved.moe);
  } else {
    mlp_.backward(step, dnorm, dout, norm2_.output(saved.norm2), saved.mlp);
  }
  if (!same(dout, dx)) step.release(dout);
  norm2_.backward(step, dx, dnorm, saved.norm2);
  step.release(dnorm);
  step.release(saved.norm2.y);

  step.enter(place_ + ".attention");
  hiding.due = true;
  dout = through_dropout(step, mb, dx, ".attention.output");
  dout = norm_output_backward(step, after1_, dout, dx, saved.after1);
  dnorm = step.temporary("d norm", dx.shape);
  attention_.backward(step, mb, dnorm, dout, norm1_.output(saved.norm1), rope_table, saved.attention);
  if (!same(dout, dx)) step.release(dout);
  step.hiding = nullptr;
  if (!hiding.empty()) hiding.run(step);
  norm1_.backward(step, dx, dnorm, saved.norm1);
  step.release(dnorm);
  step.release(saved.norm1.y);
}

}  // namespace ltrain
