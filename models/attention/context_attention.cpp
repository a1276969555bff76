#include "models/attention/context_attention.h"

#include <utility>

#include "kernels/attention/attention_sinks.h"
#include "kernels/attention/merge_attention.h"
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/norm/clip_qkv.h"
#include "models/attention/attention_workspace.h"
#include "parallel/mesh/context_sharding.h"

namespace ltrain {
namespace {

constexpr VaryingRows kRows{"context attention"};

/// Attention of one micro-batch, forward or backward.
class Attention {
 public:
  Attention(Step& step, const MicroBatch& mb, const AttentionShape& shape, const Dropout& drop)
      : step_(step),
        compute_(step.compute),
        group_(step.groups.context),
        cut_(mb.cut),
        local_(cut_.rows()),
        rows_(cut_.exchanged_rows_of(cut_.rank)),
        documents_(mb.documents),
        drop_(drop),
        whole_(shape),
        mine_(shape) {
    const int share = cut_.exchange();
    LT_CHECK(group_.size() == cut_.ranks && group_.rank() == cut_.rank && shape.heads % share == 0 &&
                 shape.kv_heads % share == 0,
             "context parallelism: expected a group of {} ranks and heads that are multiples of {} "
             "exchanging ranks, got {} ranks, {} heads and {} key-value heads",
             cut_.ranks, share, group_.size(), shape.heads, shape.kv_heads);
    mine_.all_heads = shape.all_heads ? shape.all_heads : shape.heads;
    mine_.heads /= share;
    mine_.kv_heads /= share;
    mine_.first_head += cut_.rank % share * mine_.heads;
  }

  void forward(Tensor sinks, AttentionSaved& saved) {
    const bool exchanges = cut_.exchange() > 1;
    if (exchanges) {
      Tensor all = step_.activation("qkv of the exchange", {group_rows(), mine_.qkv_width()});
      to_heads(all, saved.qkv, qkv_runs());
      step_.release(saved.qkv);
      saved.qkv = all;
    }
    saved.out = step_.activation("attention", {local_rows(), whole_.out_width()});
    saved.lse = step_.statistic("lse", {mine_.batch, mine_.heads, rows_.rows});
    Tensor out = saved.out;
    if (exchanges) out = saved.exchanged_out = step_.activation("attention of the exchange", out_shape());
    if (cut_.comm == ContextComm::all_gather) {
      gathered_forward(out, saved);
    } else if (cut_.rings() > 1) {
      ring_forward(out, saved);
    } else {
      attention_forward(compute_, out, saved.lse, saved.qkv, mine_, drop_, documents_);
    }
    if (sinks.defined()) attention_sinks_forward(compute_, out, saved.lse, sinks, first_head());
    if (exchanges) to_sequence(saved.out, out, {{0, whole_.out_width()}});
  }

  void backward(const AttentionSinks& sinks, Tensor dqkv, Tensor dout, const AttentionSaved& saved,
                double clip) {
    const bool exchanges = cut_.exchange() > 1;
    Tensor out = saved.out, grad = dqkv;
    if (exchanges) {
      Tensor all = step_.temporary("d attention of the exchange", out_shape());
      to_heads(all, dout, {{0, whole_.out_width()}});
      dout = all;
      out = saved.exchanged_out;
      grad = step_.temporary("d qkv of the exchange", saved.qkv.shape);
    }
    if (sinks.value.defined())
      attention_sinks_backward(compute_, sinks.gradient, dout, out, saved.lse, sinks.value, first_head(),
                               sinks.accumulate);
    if (cut_.comm == ContextComm::all_gather) {
      gathered_backward(grad, dout, out, saved);
    } else if (cut_.rings() > 1) {
      ring_backward(grad, dout, out, saved);
    } else {
      CudnnWorkspace workspace = attention_workspace(step_, mine_, drop_, documents_);
      attention_backward(compute_, grad, dout, saved.qkv, out, saved.lse, mine_, drop_, documents_,
                         workspace);
      step_.release(workspace.memory);
    }
    if (clip > 0) clip_values_backward(compute_, grad, saved.qkv, q_width() + mine_.k_width(), clip);
    if (!exchanges) return;
    step_.release(dout);
    to_sequence(dqkv, grad, qkv_runs());
    step_.release(grad);
  }

 private:
  int64_t local_rows() const { return whole_.batch * local_.rows; }
  /// First head after an exchange, relative to the heads before it.
  int64_t first_head() const { return mine_.first_head - whole_.first_head; }
  int64_t group_rows() const { return mine_.batch * rows_.rows; }
  int64_t q_width() const { return mine_.q_width(); }
  int64_t kv_width() const { return mine_.k_width() + mine_.v_width(); }
  Shape q_shape() const { return {group_rows(), q_width()}; }
  Shape out_shape() const { return {group_rows(), mine_.out_width()}; }
  DType wide() const { return step_.stat_type(); }
  Tensor wide_temporary(const char* name, Shape shape) {
    return step_.memory.allocate(MemoryKind::temporaries, name, wide(), shape);
  }
  Tensor travelling(const char* name, DType dtype, Shape shape) {
    return step_.memory.allocate(MemoryKind::communication, name, dtype, shape);
  }
  std::vector<ColumnRun> qkv_runs() const {
    const int64_t q = whole_.q_width(), k = whole_.k_width();
    return {{0, q}, {q, k}, {q + k, whole_.v_width()}};
  }

  void claim(Tensor t, Placement from, Placement to) {
    place_as(compute_, kRows.op, Axis::context, t, from, to);
  }

  // ---- exchange of sequence for heads and back, among neighbours ----

  /// Equal parts with the neighbours, over the full axis: other ranks get none.
  void exchange(Tensor to, Tensor from) {
    const int share = cut_.exchange(), first = cut_.ring() * share;
    std::vector<int64_t> rows(static_cast<size_t>(cut_.ranks), 0);
    for (int i = 0; i < share; ++i) rows[first + i] = local_rows();
    group_.all_to_all_v(compute_, to, rows, from, rows, kRows);
  }
  std::vector<CopyRectangle> group_order(int64_t cols) const {
    std::vector<Positions> pieces;
    for (int i = 0; i < cut_.exchange(); ++i)
      pieces.push_back(cut_.rows_of(cut_.ring() * cut_.exchange() + i));
    return rows_in_order(pieces, rows_, mine_.batch, cols);
  }
  static int64_t total(const std::vector<ColumnRun>& runs) {
    int64_t n = 0;
    for (const ColumnRun& r : runs) n += r.width;
    return n;
  }

  /// in: (local rows, all heads) -> out: (rows of the exchange, this rank's heads).
  void to_heads(Tensor out, Tensor in, const std::vector<ColumnRun>& runs) {
    const int share = cut_.exchange();
    const Shape pieces{share * local_rows(), total(runs) / share};
    Tensor from = travelling("heads to exchange", in.dtype, pieces);
    Tensor to = travelling("heads exchanged", in.dtype, pieces);
    copy_rectangles(compute_, from, in, columns_in_pieces(share, local_rows(), runs));
    exchange(to, from);
    // If all ranks exchange, each rank's own rows have become slices of the heads.
    if (cut_.rings() == 1) claim(to, Placement::V(), Placement::S(1));
    copy_rectangles(compute_, out, to, group_order(pieces[1]));
    step_.release(to);
    step_.release(from);
  }
  /// Inverse of to_heads.
  void to_sequence(Tensor out, Tensor in, const std::vector<ColumnRun>& runs) {
    const int share = cut_.exchange();
    const Shape pieces{share * local_rows(), total(runs) / share};
    Tensor from = travelling("rows to exchange", in.dtype, pieces);
    Tensor to = travelling("rows exchanged", in.dtype, pieces);
    copy_rectangles(compute_, from, in, reversed(group_order(pieces[1])));
    if (cut_.rings() == 1) claim(from, Placement::S(1), Placement::V());
    exchange(to, from);
    copy_rectangles(compute_, out, to, reversed(columns_in_pieces(share, local_rows(), runs)));
    step_.release(to);
    step_.release(from);
  }

  // ---- blocks ----

  /// This rank's queries against keys and values in `kv`: rows of k heads, then v heads.
  AttentionBlock block(Tensor qkv, Tensor kv, const Positions& keys) const {
    AttentionBlock b;
    b.shape = mine_;
    b.q = {qkv, 0};
    b.k = {kv, 0};
    b.v = {kv, mine_.k_width()};
    b.q_at = rows_, b.k_at = keys;
    b.documents = documents_;
    b.drop = drop_;
    return b;
  }
  /// k and v of this rank's rows, without q.
  void copy_kv(Tensor kv, Tensor qkv) {
    copy_rectangles(compute_, kv, qkv, {{group_rows(), kv_width(), 0, q_width(), 0, 0}});
  }
  void copy_dkv(Tensor dqkv, Tensor dkv) {
    copy_rectangles(compute_, dqkv, dkv, {{group_rows(), kv_width(), 0, 0, 0, q_width()}});
  }

  // ---- the ring ----

  int next() const { return (cut_.rank + cut_.exchange()) % cut_.ranks; }
  int previous() const { return (cut_.rank + cut_.ranks - cut_.exchange()) % cut_.ranks; }
  /// Positions of the keys that are here after `hops`.
  Positions keys_after(int hops) const {
    return cut_.exchanged_rows_of((cut_.ring() + cut_.rings() - hops) % cut_.rings() * cut_.exchange());
  }
  /// Starts to pass `from` on while `to` arrives.
  AsyncHandle hop(Tensor from, Tensor to) {
    return group_.start_send_recv(compute_, from, next(), to, previous(), kRows);
  }

  void ring_forward(Tensor out, AttentionSaved& saved) {
    const int rings = cut_.rings();
    const Shape kv_shape{group_rows(), kv_width()};
    Tensor kv = travelling("keys and values", step_.dtype, kv_shape);
    Tensor incoming = travelling("keys and values, incoming", step_.dtype, kv_shape);
    const bool narrow = out.dtype != wide();
    Tensor sum = narrow ? wide_temporary("attention so far", out.shape) : out;
    Tensor part = wide_temporary("attention of a block", out.shape);
    Tensor part_lse = wide_temporary("lse of a block", saved.lse.shape);
    copy_kv(kv, saved.qkv);
    for (int t = 0; t < rings; ++t) {
      AsyncHandle arrived;
      if (t + 1 < rings) arrived = hop(kv, incoming);
      attention_block_forward(compute_, t ? part : sum, t ? part_lse : saved.lse,
                              block(saved.qkv, kv, keys_after(t)));
      if (t) merge_attention(compute_, sum, saved.lse, part, part_lse);
      if (t + 1 < rings) arrived.wait(compute_);
      place_spent(compute_, kv);
      std::swap(kv, incoming);
    }
    if (narrow) cast(compute_, out, sum);
    for (Tensor* tensor : {&part_lse, &part, &incoming, &kv}) step_.release(*tensor);
    if (narrow) step_.release(sum);
  }

  /// Gradients of keys and values travel with them, one hop behind, and need one more hop home.
  void ring_backward(Tensor dqkv, Tensor dout, Tensor out, const AttentionSaved& saved) {
    const int rings = cut_.rings();
    const Shape kv_shape{group_rows(), kv_width()};
    Tensor kv = travelling("keys and values", step_.dtype, kv_shape);
    Tensor incoming = travelling("keys and values, incoming", step_.dtype, kv_shape);
    Tensor dkv = travelling("d keys and values", wide(), kv_shape);
    Tensor dkv_incoming = travelling("d keys and values, incoming", wide(), kv_shape);
    Tensor part = wide_temporary("d keys and values of a block", kv_shape);
    const bool narrow = dqkv.dtype != wide();
    Tensor dq = narrow ? wide_temporary("d queries so far", q_shape()) : dqkv;
    copy_kv(kv, saved.qkv);
    AsyncHandle arrived, home;
    for (int t = 0; t < rings; ++t) {
      if (t + 1 < rings) arrived = hop(kv, incoming);
      const Tensor to = t ? part : dkv;
      AttentionBlockGrads grads;
      grads.dq = {dq, 0};
      grads.dk = {to, 0}, grads.dv = {to, mine_.k_width()};
      grads.add_q = t > 0;
      attention_block_backward(compute_, grads, dout, out, saved.lse, block(saved.qkv, kv, keys_after(t)));
      if (t) {
        home.wait(compute_);
        std::swap(dkv, dkv_incoming);
        add_to(compute_, dkv, part);
      }
      home = hop(dkv, dkv_incoming);
      place_spent(compute_, dkv);
      if (t + 1 < rings) arrived.wait(compute_);
      place_spent(compute_, kv);
      std::swap(kv, incoming);
    }
    if (narrow) copy_rectangles(compute_, dqkv, dq, {{group_rows(), q_width(), 0, 0, 0, 0}});
    home.wait(compute_);
    copy_dkv(dqkv, dkv_incoming);
    if (narrow) step_.release(dq);
    for (Tensor* tensor : {&part, &dkv_incoming, &dkv, &incoming, &kv}) step_.release(*tensor);
  }

  // ---- all keys and values on every rank ----

  /// Keys and values of the full sequence, in its order.
  Tensor gather(Tensor qkv) {
    const int64_t cols = kv_width();
    Tensor pieces =
        travelling("keys and values of all ranks", step_.dtype, {cut_.ranks * group_rows(), cols});
    Tensor kv = travelling("keys and values", step_.dtype, {group_rows(), cols});
    copy_kv(kv, qkv);
    group_.all_gather(compute_, pieces, kv, kRows);
    step_.release(kv);
    Tensor all = step_.temporary("keys and values in order", {mine_.batch * cut_.seq, cols});
    copy_rectangles(compute_, all, pieces, rank_order(cols));
    step_.release(pieces);
    return all;
  }
  std::vector<CopyRectangle> rank_order(int64_t cols) const {
    std::vector<Positions> pieces;
    for (int r = 0; r < cut_.ranks; ++r) pieces.push_back(cut_.rows_of(r));
    return rows_in_order(pieces, cut_.seq, mine_.batch, cols);
  }

  void gathered_forward(Tensor out, AttentionSaved& saved) {
    Tensor all = gather(saved.qkv);
    attention_block_forward(compute_, out, saved.lse, block(saved.qkv, all, cut_.seq));
    step_.release(all);
  }

  void gathered_backward(Tensor dqkv, Tensor dout, Tensor out, const AttentionSaved& saved) {
    const int64_t cols = kv_width();
    Tensor all = gather(saved.qkv);
    Tensor dall = wide_temporary("d keys and values in order", all.shape);
    AttentionBlockGrads grads;
    grads.dq = {dqkv, 0};
    grads.dk = {dall, 0}, grads.dv = {dall, mine_.k_width()};
    attention_block_backward(compute_, grads, dout, out, saved.lse, block(saved.qkv, all, cut_.seq));
    step_.release(all);
    Tensor pieces = travelling("d keys and values by rank", wide(), {cut_.ranks * group_rows(), cols});
    copy_rectangles(compute_, pieces, dall, reversed(rank_order(cols)));
    step_.release(dall);
    Tensor dkv = travelling("d keys and values", wide(), {group_rows(), cols});
    group_.reduce_scatter(compute_, dkv, pieces, kRows);
    copy_dkv(dqkv, dkv);
    step_.release(dkv);
    step_.release(pieces);
  }

  Step& step_;
  Stream& compute_;
  const Group& group_;
  const ContextSharding& cut_;
  const Positions local_;  ///< this rank's rows of a sample
  const Positions rows_;   ///< rows that it attends from: those of all ranks in its exchange
  Tensor documents_;
  const Dropout& drop_;
  const AttentionShape whole_;  ///< before an exchange
  AttentionShape mine_;         ///< after it
};

}  // namespace

void context_attention_forward(Step& step, const MicroBatch& mb, const AttentionShape& shape,
                               const Dropout& drop, Tensor sinks, AttentionSaved& saved) {
  Attention(step, mb, shape, drop).forward(sinks, saved);
}

void context_attention_backward(Step& step, const MicroBatch& mb, const AttentionShape& shape,
                                const Dropout& drop, const AttentionSinks& sinks, Tensor dqkv, Tensor dout,
                                const AttentionSaved& saved, double clip) {
  Attention(step, mb, shape, drop).backward(sinks, dqkv, dout, saved, clip);
}

}  // namespace ltrain
