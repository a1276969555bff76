#include "kernels/attention/attention.h"

#include <algorithm>

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

DType wide_type(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

AttentionBlock fused_block(Tensor qkv, const AttentionShape& a, const Dropout& drop, Tensor documents) {
  AttentionBlock b;
  b.shape = a;
  b.q = {qkv, 0};
  b.k = {qkv, a.q_width()};
  b.v = {qkv, a.q_width() + a.k_width()};
  b.q_at = b.k_at = a.seq;
  b.documents = documents;
  b.drop = drop;
  return b;
}

void check_rows(const char* what, const HeadRows& h, int64_t rows, int64_t cols) {
  LT_CHECK(h.t.shape.rank >= 1 && h.t.rows() == rows && h.first >= 0 && h.first + cols <= h.t.cols(),
           "attention: expected {} to have {} rows and {} columns from column {} on, got shape {}", what,
           rows, cols, h.first, to_string(h.t.shape));
}

void check_runs(const char* what, const Positions& p, int64_t seq) {
  LT_CHECK(p.rows >= 1 && p.split >= 1 && p.split <= p.rows && p.first >= 0 && p.first + p.split <= seq &&
               (p.split == p.rows || (p.second >= p.first + p.split && p.second + p.rows - p.split <= seq)),
           "attention: expected {} in ascending runs within {} positions, got [{}, +{}) and [{}, +{})", what,
           seq, p.first, p.split, p.second, p.rows - p.split);
}

void check(const AttentionBlock& b, const Tensor& out, const Tensor& lse) {
  const AttentionShape& a = b.shape;
  LT_CHECK(
      a.heads % a.kv_heads == 0,
      "attention: expected heads to be a multiple of key-value heads, got {} heads and {} key-value heads",
      a.heads, a.kv_heads);
  LT_CHECK(a.window >= 0, "attention: expected a window of 0 or more keys, got {}", a.window);
  LT_CHECK(a.scale >= 0 && a.soft_cap >= 0,
           "attention: expected scale >= 0 and soft_cap >= 0, got scale {} and soft_cap {}", a.scale,
           a.soft_cap);
  check_runs("queries", b.q_at, a.seq);
  check_runs("keys", b.k_at, a.seq);
  LT_CHECK(a.value_dim >= 0 && a.value_dim <= a.head_dim,
           "attention: expected a value dim from 0 to head dim {}, got {}", a.head_dim, a.value_dim);
  check_rows("queries", b.q, a.batch * b.q_at.rows, a.q_width());
  check_rows("keys", b.k, a.batch * b.k_at.rows, a.k_width());
  check_rows("values", b.v, a.batch * b.k_at.rows, a.v_width());
  LT_CHECK(b.k.t.dtype == b.q.t.dtype && b.v.t.dtype == b.q.t.dtype && out.rows() == a.batch * b.q_at.rows &&
               out.cols() == a.out_width() &&
               (out.dtype == b.q.t.dtype || out.dtype == wide_type(b.q.t.dtype)) &&
               lse.elements() == a.batch * a.heads * b.q_at.rows && lse.dtype == wide_type(b.q.t.dtype) &&
               (!b.documents.defined() || b.documents.elements() == a.batch * a.seq),
           "attention: expected q, k, v of one dtype, out ({}, {}) and lse of {} elements; got q {} {}, k "
           "{}, v {}, out {} {}, lse {} {}",
           a.batch * b.q_at.rows, a.out_width(), a.batch * a.heads * b.q_at.rows, dtype_name(b.q.t.dtype),
           to_string(b.q.t.shape), dtype_name(b.k.t.dtype), dtype_name(b.v.t.dtype), dtype_name(out.dtype),
           to_string(out.shape), dtype_name(lse.dtype), to_string(lse.shape));
}

const void* first_of(const HeadRows& h) {
  return static_cast<const char*>(h.t.data) + h.first * dtype_size(h.t.dtype);
}

AttentionArgs args_of(const AttentionBlock& b) {
  const AttentionShape& s = b.shape;
  AttentionArgs a;
  a.batch = s.batch, a.seq = s.seq, a.heads = s.heads, a.kv_heads = s.kv_heads, a.head_dim = s.head_dim;
  a.value_dim = s.values();
  a.all_heads = s.all_heads ? s.all_heads : s.heads;
  a.first_head = s.first_head;
  a.window = s.window;
  a.scale = s.scale, a.soft_cap = s.soft_cap;
  a.q = first_of(b.q), a.k = first_of(b.k), a.v = first_of(b.v);
  a.q_stride = b.q.t.cols(), a.k_stride = b.k.t.cols(), a.v_stride = b.v.t.cols();
  a.q_at = b.q_at, a.k_at = b.k_at;
  if (b.documents.defined()) a.documents = b.documents.ptr<int32_t>();
  a.drop = dropout_args(b.drop);
  return a;
}

/// FLOPs of masked matmuls over all heads: `of_keys` matmuls with keys and `of_values` with values.
double products_flops(const AttentionBlock& b, double of_keys, double of_values) {
  const AttentionShape& a = b.shape;
  return 2.0 * a.batch * a.heads * (of_keys * a.head_dim + of_values * a.values()) *
         visible_pairs(b.q_at, b.k_at, a.window);
}

double bytes_of(const AttentionBlock& b) {
  const AttentionShape& a = b.shape;
  return static_cast<double>(dtype_size(b.q.t.dtype)) * a.batch *
         (a.q_width() * b.q_at.rows + (a.k_width() + a.v_width()) * b.k_at.rows);
}

/// Cost with the matmuls of the kernel: `of_keys` with keys, `of_values` with values. Backward computes
/// scores once more, which do not count for MFU.
OpCost cost_of(std::string_view name, const AttentionBlock& b, double of_keys, double of_values) {
  OpCost cost = op_cost(name, OpClass::attention, products_flops(b, of_keys, of_values), {}, {});
  cost.model_flops = products_flops(b, of_values, of_values);
  cost.dtype = b.q.t.dtype;
  cost.bytes = bytes_of(b);
  cost.n = b.q_at.rows, cost.k = b.shape.head_dim, cost.m = b.shape.batch * b.shape.heads;
  return cost;
}

/// Five matmuls: scores, and gradients of probabilities, values, keys and queries.
OpCost backward_cost(std::string_view name, const AttentionBlock& b) {
  OpCost cost = cost_of(name, b, 3, 2);
  cost.recomputed_flops = products_flops(b, 1, 1);
  return cost;
}

void run_forward(Stream& s, Tensor out, Tensor lse, const AttentionBlock& b) {
  LT_LAUNCH(s, attention_forward, b.q.t.dtype, out.dtype != b.q.t.dtype, out.data, lse.data, args_of(b));
}

AttentionSink sink(const HeadRows& h, DType t, bool add) {
  LT_CHECK(h.t.dtype == t || h.t.dtype == wide_type(t),
           "attention: expected a gradient of dtype {} or {}, got {}", dtype_name(t),
           dtype_name(wide_type(t)), dtype_name(h.t.dtype));
  return {const_cast<void*>(first_of(h)), h.t.cols(), h.t.dtype != t, add};
}

void run_backward(Stream& s, const AttentionBlockGrads& g, Tensor dout, Tensor out, Tensor lse,
                  const AttentionBlock& b, const CudnnWorkspace& workspace = {}) {
  const DType t = b.q.t.dtype;
  AttentionArgs a = args_of(b);
  if (workspace.memory.defined())
    a.workspace = workspace.memory.data, a.workspace_bytes = workspace.memory.bytes();
  a.deterministic = workspace.deterministic;
  const AttentionSink dq = sink(g.dq, t, g.add_q), dk = sink(g.dk, t, g.add_kv), dv = sink(g.dv, t, g.add_kv);
  LT_LAUNCH(s, attention_backward, t, dq, dk, dv, dout.data, out.data, lse.data, a);
}

}  // namespace

double visible_pairs(const Positions& queries, const Positions& keys, int64_t window) {
  // Number of pairs i < n, j < m with j + gap <= i, for runs of n queries and m keys that begin `gap` later.
  const auto pairs = [](int64_t n, int64_t m, int64_t gap) {
    const auto triangle = [](double x) { return x > 0 ? 0.5 * x * (x + 1) : 0; };
    // A query sees i - gap + 1 keys, clamped to [0, m].
    return triangle(static_cast<double>(n - gap)) - triangle(static_cast<double>(n - gap - m)) -
           (gap < 0 ? triangle(static_cast<double>(-gap)) - triangle(static_cast<double>(-gap - m)) : 0);
  };
  double total = 0;
  for (int q = 0; q < 2; ++q)
    for (int k = 0; k < 2; ++k) {
      const int64_t n = q ? queries.rows - queries.split : queries.split;
      const int64_t m = k ? keys.rows - keys.split : keys.split;
      if (n <= 0 || m <= 0) continue;
      const int64_t gap = (k ? keys.second : keys.first) - (q ? queries.second : queries.first);
      total += pairs(n, m, gap);
      if (window) total -= pairs(n, m, gap + window);  // minus pairs a window or more apart
    }
  return total;
}

void attention_forward(Stream& s, Tensor out, Tensor lse, Tensor qkv, const AttentionShape& shape,
                       const Dropout& drop, Tensor documents) {
  const AttentionBlock b = fused_block(qkv, shape, drop, documents);
  check(b, out, lse);
  LT_CHECK(qkv.cols() == shape.qkv_width() && out.dtype == qkv.dtype,
           "attention: expected qkv of {} columns with the dtype of out {}, got {} {}", shape.qkv_width(),
           dtype_name(out.dtype), to_string(qkv.shape), dtype_name(qkv.dtype));
  if (s.meta()) {
    OpCost cost = cost_of("attention_forward", b, 1, 1);
    cost.bytes = static_cast<double>(out.bytes() + lse.bytes() + qkv.bytes());
    s.meta()->add(s, cost);
    place(s, "attention_forward", Rule::elementwise, {out, lse}, {qkv});
    return;
  }
  run_forward(s, out, lse, b);
}

void attention_backward(Stream& s, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                        const AttentionShape& shape, const Dropout& drop, Tensor documents,
                        const CudnnWorkspace& workspace) {
  const AttentionBlock b = fused_block(qkv, shape, drop, documents);
  check(b, out, lse);
  LT_CHECK(dqkv.shape == qkv.shape && dout.shape == out.shape && dqkv.dtype == qkv.dtype,
           "attention backward: expected dqkv {} {} and dout {}, got {} {} and {}", dtype_name(qkv.dtype),
           to_string(qkv.shape), to_string(out.shape), dtype_name(dqkv.dtype), to_string(dqkv.shape),
           to_string(dout.shape));
  if (s.meta()) {
    const std::string_view name = !workspace.memory.defined() ? "attention_backward"
                                  : workspace.deterministic   ? kDeterministicBackwardByCudnn
                                                              : kBackwardByCudnn;
    OpCost cost = backward_cost(name, b);
    if (name == kBackwardByCudnn) cost.recomputed_flops = 0;
    cost.bytes = static_cast<double>(dqkv.bytes() + dout.bytes() + qkv.bytes() + out.bytes() + lse.bytes());
    s.meta()->add(s, cost);
    place(s, "attention_backward", Rule::elementwise, {dqkv}, {dout, qkv, out, lse});
    return;
  }
  run_backward(s, {{dqkv, b.q.first}, {dqkv, b.k.first}, {dqkv, b.v.first}}, dout, out, lse, b, workspace);
}

void attention_block_forward(Stream& s, Tensor out, Tensor lse, const AttentionBlock& b) {
  check(b, out, lse);
  if (s.meta()) {
    OpCost cost = cost_of("attention_block_forward", b, 1, 1);
    cost.bytes += static_cast<double>(out.bytes() + lse.bytes());
    s.meta()->add(s, cost);
    place(s, "attention_block_forward", Rule::elementwise, {out, lse}, {b.q.t, b.k.t, b.v.t});
    return;
  }
  const OpRange range(s, "attention_block_forward");
  run_forward(s, out, lse, b);
}

void attention_block_backward(Stream& s, const AttentionBlockGrads& g, Tensor dout, Tensor out, Tensor lse,
                              const AttentionBlock& b) {
  const AttentionShape& a = b.shape;
  check(b, out, lse);
  LT_CHECK(dout.shape == out.shape && dout.dtype == out.dtype && out.dtype == b.q.t.dtype,
           "attention backward: expected dout and out of shape {} and dtype {}, got dout {} {} and out {}",
           to_string(out.shape), dtype_name(b.q.t.dtype), dtype_name(dout.dtype), to_string(dout.shape),
           dtype_name(out.dtype));
  check_rows("query gradients", g.dq, a.batch * b.q_at.rows, a.q_width());
  check_rows("key gradients", g.dk, a.batch * b.k_at.rows, a.k_width());
  check_rows("value gradients", g.dv, a.batch * b.k_at.rows, a.v_width());
  if (s.meta()) {
    OpCost cost = backward_cost("attention_block_backward", b);
    cost.bytes = 2 * cost.bytes + static_cast<double>(dout.bytes() + out.bytes() + lse.bytes());
    s.meta()->add(s, cost);
    place(s, "attention_block_backward", Rule::elementwise, {g.dq.t}, {dout, b.q.t, b.k.t, b.v.t, out, lse},
          g.add_q);
    // If all ranks hold the same keys, the queries of each rank see them: the gradient is a sum over ranks.
    place_operand_gradient(s, "attention_block_backward", g.dk.t, b.k.t, {dout, b.q.t}, g.add_kv);
    place_operand_gradient(s, "attention_block_backward", g.dv.t, b.v.t, {dout, b.q.t}, g.add_kv);
    return;
  }
  const OpRange range(s, "attention_block_backward");
  run_backward(s, g, dout, out, lse, b);
}

int64_t attention_scratch_bytes(const Positions& queries, const Positions& keys, int64_t head_dim,
                                DType dtype) {
  const auto padded = [](const Positions& p) {
    return (p.split + 63) / 64 * 64 + (p.rows - p.split + 63) / 64 * 64;
  };
  const int64_t element = dtype == DType::f64 ? 8 : 4, q = padded(queries), k = padded(keys);
  return element * ((3 * q + 4 * k) * head_dim + 2 * 64 * head_dim + 2 * 64 * 64 + 2 * q);
}

int64_t attention_scratch_bytes(const AttentionShape& a, DType dtype) {
  return attention_scratch_bytes(a.seq, a.seq, a.head_dim, dtype);
}

AttentionArgs fused_attention_args(DType t, const void* qkv, const AttentionShape& shape, DropoutArgs drop,
                                   const int32_t* documents) {
  Tensor rows;
  rows.data = const_cast<void*>(qkv);
  rows.dtype = t;
  rows.shape = {shape.batch * shape.seq, shape.qkv_width()};
  AttentionArgs a = args_of(fused_block(rows, shape, {}, {}));
  a.drop = drop;
  a.documents = documents;
  return a;
}

}  // namespace ltrain
