#include "kernels/attention/attention_cudnn.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <type_traits>
#include <vector>

#include "base/log.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/out_of_memory.h"
#include "kernels/tensor/rng.h"

namespace ltrain {
namespace {

bool whole(const Positions& p, int64_t seq) { return p.rows == seq && p.split == seq && p.first == 0; }

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

/// Strides of rows of heads, `stride` elements apart.
CudnnStrides rows_of(int64_t stride, const AttentionArgs& a) { return {a.seq * stride, a.head_dim, stride}; }

/// Reason against a call, forward or backward: from the recipe (cudnn_declines) or from the call.
std::string call_declines(DType t, const AttentionArgs& a) {
  if (std::string why = cudnn_declines(t, a.head_dim, a.drop.threshold != 0, a.documents, a.window,
                                       a.soft_cap > 0, a.value_dim);
      !why.empty())
    return why;
  if (!whole(a.q_at, a.seq) || !whole(a.k_at, a.seq)) return "some queries against some keys";
  if (!aligned16(a.q) || !aligned16(a.k) || !aligned16(a.v) || a.q_stride % 8 || a.k_stride % 8 ||
      a.v_stride % 8)
    return "rows that do not begin at multiples of 16 bytes";
  return "";
}

CudnnAttention description(DType t, const AttentionArgs& a) {
  CudnnAttention c;
  c.type = t;
  c.batch = a.batch, c.heads = a.heads, c.kv_heads = a.kv_heads, c.seq = a.seq, c.head_dim = a.head_dim;
  c.scale = a.scale > 0 ? a.scale : 1 / std::sqrt(static_cast<double>(a.head_dim));
  c.q = rows_of(a.q_stride, a), c.k = rows_of(a.k_stride, a), c.v = rows_of(a.v_stride, a);
  c.out = rows_of(a.heads * a.head_dim, a);
  c.lse = {a.heads * a.seq, a.seq, 1};
  return c;
}

std::string forward(Stream& s, DType t, void* out, void* lse, const AttentionArgs& a) {
  CudnnAttention c = description(t, a);
  c.workspace = stream_scratch_bytes(DeviceKind::cuda);
  return cudnn_attention(s, c, {a.q, a.k, a.v, out, lse});
}

AttentionShape shape_of(const AttentionArgs& a) {
  AttentionShape shape;
  shape.batch = a.batch, shape.seq = a.seq, shape.heads = a.heads, shape.kv_heads = a.kv_heads;
  shape.head_dim = a.head_dim;
  shape.window = a.window;
  return shape;
}

/// Address of a head of a sample in a tensor with `bytes` bytes an element.
template <class P>
P* part_of(P* all, const CudnnStrides& s, int64_t sample, int64_t head, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<P>, const char, char>;
  return static_cast<Byte*>(all) + bytes * (sample * s.sample + head * s.head);
}

std::string backward(Stream& s, DType t, const AttentionSink& dq, const AttentionSink& dk,
                     const AttentionSink& dv, const void* dout, const void* out, const void* lse,
                     const AttentionArgs& a) {
  CudnnAttention c = description(t, a);
  c.backward = true;
  c.dout = c.out;
  c.dq = rows_of(dq.stride, a), c.dk = rows_of(dk.stride, a), c.dv = rows_of(dv.stride, a);
  c.workspace = a.workspace_bytes;
  const CudnnBuffers all{.q = a.q,
                         .k = a.k,
                         .v = a.v,
                         .out = const_cast<void*>(out),
                         .lse = const_cast<void*>(lse),
                         .dout = dout,
                         .dq = dq.data,
                         .dk = dk.data,
                         .dv = dv.data,
                         .workspace = a.workspace};
  if (!a.deterministic) return cudnn_attention(s, c, all);
  const CudnnSlice slice = cudnn_slice(shape_of(a), a.workspace_bytes);
  const int64_t group = a.heads / a.kv_heads;
  c.deterministic = true;
  c.batch = slice.samples, c.kv_heads = slice.kv_heads, c.heads = slice.kv_heads * group;
  for (int64_t b = 0; b < a.batch; b += slice.samples)
    for (int64_t kv = 0; kv < a.kv_heads; kv += slice.kv_heads) {
      const int64_t h = kv * group;
      CudnnBuffers at = all;  // all slices use the same workspace, one after another
      at.q = part_of(all.q, c.q, b, h, 2), at.k = part_of(all.k, c.k, b, kv, 2);
      at.v = part_of(all.v, c.v, b, kv, 2), at.out = part_of(all.out, c.out, b, h, 2);
      at.lse = part_of(all.lse, c.lse, b, h, 4), at.dout = part_of(all.dout, c.dout, b, h, 2);
      at.dq = part_of(all.dq, c.dq, b, h, 2), at.dk = part_of(all.dk, c.dk, b, kv, 2);
      at.dv = part_of(all.dv, c.dv, b, kv, 2);
      if (std::string why = cudnn_attention(s, c, at); !why.empty()) return why;
    }
  return "";
}

std::mutex said_mutex;
std::set<std::string> said;  // reasons already printed

void say_once(const std::string& why) {
  const std::lock_guard lock(said_mutex);
  if (said.insert(why).second) log_lines(LogLevel::info, "ltrain: attention: native kernels: " + why);
}

// ---- comparison ----

/// One small problem in device memory, computed by cuDNN or by the native kernels.
class Sample {
 public:
  Sample(Stream& s, DType t, const AttentionShape& shape) : s_(s), t_(t), shape_(shape) {
    const MemoryPurpose purpose("a comparison of cuDNN's attention with the native one");
    memory_ = device_memory(DeviceKind::cuda, size());
    std::vector<char> host(static_cast<size_t>(size()), static_cast<char>(0xff));  // NaNs in all types
    for (int64_t i = 0; i < qkv_ + out_; ++i) {
      // Magnitudes of normalized activations. dout lies behind qkv.
      const float v = static_cast<float>(normal_value(7, 11, static_cast<uint64_t>(i)));
      if (t == DType::bf16) {
        put(reinterpret_cast<bf16*>(host.data()), i, v);
      } else {
        put(reinterpret_cast<f16*>(host.data()), i, v);
      }
    }
    s_.copy(memory_.get(), host.data(), size());
    s_.synchronize();  // before `host` is freed
  }
  ~Sample() {
    try {
      s_.synchronize();
    } catch (...) {  // the next wait reports the error
    }
  }

  /// Writes out and lse, or dqkv, to `result` as floats. Returns cuDNN's reason if it refuses. The
  /// deterministic backward runs in the smallest slices.
  std::string run(bool by_cudnn, CudnnPass pass, std::vector<float>& result) {
    const bool back = pass != CudnnPass::forward;
    AttentionArgs a = fused_attention_args(t_, at(0), shape_, {});
    a.deterministic = pass == CudnnPass::deterministic_backward;
    a.workspace = at(workspace_at());
    a.workspace_bytes = a.deterministic ? cudnn_slice(shape_, 0).bytes : cudnn_backward_workspace(shape_);
    const void* dout = at(2 * qkv_);
    void *out = at(out_at()), *lse = at(lse_at());
    const int64_t stride = shape_.qkv_width();
    const auto sink = [&](int64_t heads) {
      return AttentionSink{at(dqkv_at() + 2 * heads * shape_.head_dim), stride, false, false};
    };
    const AttentionSink dq = sink(0), dk = sink(shape_.heads), dv = sink(shape_.heads + shape_.kv_heads);
    std::string why;
    if (by_cudnn) {
      if (!back) why = forward(s_, t_, out, lse, a);
      if (back) why = backward(s_, t_, dq, dk, dv, dout, out, lse, a);
    } else {
      if (!back) attention_forward_cuda(s_, t_, false, out, lse, a);
      if (back) attention_backward_cuda(s_, t_, dq, dk, dv, dout, out, lse, a);
    }
    if (!why.empty()) return why;
    std::vector<char> host(static_cast<size_t>(workspace_at()));
    s_.copy(host.data(), memory_.get(), workspace_at());
    s_.synchronize();
    result.clear();
    const auto take = [&](int64_t from, int64_t n, DType t) {
      for (int64_t i = 0; i < n; ++i) {
        const char* p = host.data() + from;
        result.push_back(t == DType::f32    ? get(reinterpret_cast<const float*>(p), i)
                         : t == DType::bf16 ? get(reinterpret_cast<const bf16*>(p), i)
                                            : get(reinterpret_cast<const f16*>(p), i));
      }
    };
    if (back) {
      take(dqkv_at(), qkv_, t_);
    } else {
      take(out_at(), out_, t_);
      take(lse_at(), lse_, DType::f32);
    }
    return "";
  }

 private:
  char* at(int64_t byte) const { return static_cast<char*>(memory_.get()) + byte; }
  int64_t out_at() const { return 2 * (qkv_ + out_); }
  int64_t lse_at() const { return out_at() + 2 * out_; }
  int64_t dqkv_at() const { return lse_at() + 4 * lse_; }
  int64_t workspace_at() const { return (dqkv_at() + 2 * qkv_ + 255) / 256 * 256; }
  int64_t size() const {
    return workspace_at() + std::max(cudnn_backward_workspace(shape_), cudnn_slice(shape_, 0).bytes);
  }

  Stream& s_;
  DType t_;
  AttentionShape shape_;
  int64_t rows_ = shape_.batch * shape_.seq, qkv_ = rows_ * shape_.qkv_width(),
          out_ = rows_ * shape_.heads * shape_.head_dim, lse_ = rows_ * shape_.heads;  ///< elements
  std::shared_ptr<void> memory_;
};

const char* name_of(CudnnPass pass) {
  switch (pass) {
    case CudnnPass::forward:
      return "the forward of";
    case CudnnPass::backward:
      return "the backward of";
    case CudnnPass::deterministic_backward:
      return "the deterministic backward of";
  }
  return "";
}

/// Empty if cuDNN computes the same as the native kernels.
std::string compare(DType t, const AttentionShape& shape, CudnnPass pass) {
  // A stream of its own: the caller's may hold work that waits for other ranks.
  const auto stream = make_compute_stream(DeviceKind::cuda, "comparison of attention");
  Sample sample(*stream, t, shape);
  std::vector<float> ours, theirs;
  // Backward reads the out and lse of the native kernels.
  if (std::string why = sample.run(false, CudnnPass::forward, ours); !why.empty()) return why;
  if (pass != CudnnPass::forward) sample.run(false, pass, ours);
  if (std::string why = sample.run(true, pass, theirs); !why.empty()) return why;
  double largest = 0, worst = 0;
  for (float v : ours) largest = std::max(largest, std::fabs(static_cast<double>(v)));
  for (size_t i = 0; i < ours.size(); ++i) {
    const double d = std::fabs(static_cast<double>(ours[i]) - static_cast<double>(theirs[i]));
    worst = d <= worst ? worst : d;  // a NaN is the worst
    if (std::isnan(d)) break;
  }
  // 16-bit types round once at the end and once between the matmuls: some units of 2^-8 and 2^-11.
  const double most = (t == DType::bf16 ? 2e-2 : 4e-3) * largest;
  if (worst <= most) {
    // Another run must give the same bits, except in the non-deterministic backward.
    if (pass == CudnnPass::backward) return "";
    if (std::string why = sample.run(true, pass, ours); !why.empty()) return why;
    if (ours == theirs) return "";
    return fmt::format("cuDNN {} gives other bits when {} {} of head dim {} is run again", cudnn_version(),
                       name_of(pass), dtype_name(t), shape.head_dim);
  }
  return fmt::format(
      "cuDNN {} is not to be trusted with {} {} of head dim {}: it differs by {:.3g} from the "
      "kernels here, of values up to {:.3g}",
      cudnn_version(), name_of(pass), dtype_name(t), shape.head_dim, worst, largest);
}

// Fibres of the emulated device are slow, and its library sums in one order.
#ifdef LTRAIN_CUDA_EMULATED
constexpr int64_t kLongerForOrder = 1;
#else
constexpr int64_t kLongerForOrder = 8;
#endif

struct Kind {
  DType t;
  int64_t head_dim;
  bool groups, odd;
  CudnnPass pass;
  auto operator<=>(const Kind&) const = default;
};
std::mutex checks_mutex;
std::map<Kind, std::string> checks;

}  // namespace

namespace {

int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// Bytes of backward for rows padded to `tile`: sums, dk and dv of each query head if heads share keys, and
/// `a_row` bytes for each row.
int64_t backward_bytes(const AttentionShape& a, int64_t tile, int64_t a_row) {
  const int64_t rows = a.batch * a.heads * rounded_up(a.seq, tile);
  const int64_t keys = a.kv_heads < a.heads ? 2 * 2 * a.head_dim : 0;
  return rounded_up(rows * (4 + keys + a_row) + 4096, 256);
}

}  // namespace

int64_t cudnn_backward_workspace(const AttentionShape& a, bool deterministic) {
  if (deterministic) return cudnn_slice(a, kCudnnSliceBytes).bytes;
  return backward_bytes(a, 64, 2 * 4 * a.head_dim);
}

CudnnSlice cudnn_slice(const AttentionShape& a, int64_t bytes) {
  const auto slice = [&](int64_t samples, int64_t kv_heads) {
    AttentionShape part = a;
    part.batch = samples, part.kv_heads = kv_heads, part.heads = kv_heads * (a.heads / a.kv_heads);
    return CudnnSlice{samples, kv_heads, backward_bytes(part, 128, 2 * rounded_up(a.seq, 128))};
  };
  CudnnSlice found = slice(a.batch, a.kv_heads);
  if (a.seq % 4 != 0) return found;  // the lse of a head has no padding
  for (int64_t n = a.batch - 1; n > 0 && found.bytes > bytes; --n)
    if (a.batch % n == 0) found = slice(n, a.kv_heads);
  for (int64_t n = a.kv_heads - 1; n > 0 && found.bytes > bytes; --n)
    if (a.kv_heads % n == 0) found = slice(1, n);
  return found;
}

std::string cudnn_declines(DType t, int64_t head_dim, bool dropout, bool documents, int64_t window,
                           bool soft_cap, int64_t value_dim) {
  if (!is_half(t)) return fmt::format("cuDNN takes bf16 and fp16, not {}", dtype_name(t));
  if (head_dim % 8 != 0 || head_dim > 256)
    return fmt::format("cuDNN takes head dims that are multiples of 8 up to 256, not {}", head_dim);
  if (value_dim != 0 && value_dim != head_dim)
    return fmt::format("cuDNN is given values as wide as keys, and these are {} beside {}", value_dim,
                       head_dim);
  if (dropout) return "the mask of dropout is by counter here, and cuDNN has one of its own";
  if (documents) return "queries see keys of their own document alone";
  if (window) return fmt::format("queries see a window of {} keys", window);
  if (soft_cap) return "scores are soft-capped";
  return "";
}

std::string cudnn_unusable(Stream& s, DType t, const AttentionShape& shape, CudnnPass pass) {
  if (std::string why = cudnn_declines(t, shape.head_dim, false, false, shape.window, false, shape.value_dim);
      !why.empty())
    return why;
  const Kind kind{t, shape.head_dim, shape.kv_heads < shape.heads, shape.seq % 128 != 0, pass};
  const std::lock_guard lock(checks_mutex);
  const auto known = checks.find(kind);
  if (known != checks.end()) return known->second;
  if (s.recording()) return "a graph is recorded, and cuDNN was not compared with the kernels here before";
  std::string why = cudnn_missing();
  if (why.empty()) {
    AttentionShape small;
    small.batch = 2, small.seq = kind.odd ? 200 : 256;
    // Sums over two tiles of keys are the same in any order, so that a longer sequence is needed.
    if (pass == CudnnPass::deterministic_backward) small.seq *= kLongerForOrder;
    small.heads = 2, small.kv_heads = kind.groups ? 1 : 2;
    small.head_dim = shape.head_dim;
    try {
      why = compare(t, small, pass);
    } catch (const std::exception& e) {
      why = fmt::format("comparing cuDNN with the kernels here: {}", e.what());
    }
  }
  const std::lock_guard told(said_mutex);
  if (!why.empty()) said.insert(why);
  return checks[kind] = why;
}

void forget_cudnn_checks() {
  const std::scoped_lock lock(checks_mutex, said_mutex);
  checks.clear();
  said.clear();
}

namespace {

/// Handles a call that cuDNN did not take. `by_recipe`: the recipe itself is the reason, and nothing is
/// printed.
bool to_native_kernels(const Stream& s, const std::string& why, bool by_recipe) {
  if (s.attention_backend == AttentionBackend::cudnn)
    fail(ExitCode::usage, "attention_backend: cudnn: {}; attention_backend: own works everywhere", why);
  if (!by_recipe) say_once(why);
  return false;
}

}  // namespace

bool attention_forward_by_cudnn(Stream& s, DType t, bool wide_out, void* out, void* lse,
                                const AttentionArgs& a) {
  if (s.attention_backend == AttentionBackend::own) return false;
  std::string why = call_declines(t, a);
  if (why.empty() && (wide_out || !aligned16(out))) why = "a result that is not laid out for it";
  if (!why.empty()) return to_native_kernels(s, why, true);
  why = cudnn_unusable(s, t, shape_of(a), CudnnPass::forward);
  if (why.empty()) why = forward(s, t, out, lse, a);
  return why.empty() || to_native_kernels(s, why, false);
}

bool attention_backward_by_cudnn(Stream& s, DType t, const AttentionSink& dq, const AttentionSink& dk,
                                 const AttentionSink& dv, const void* dout, const void* out, const void* lse,
                                 const AttentionArgs& a) {
  if (s.attention_backend == AttentionBackend::own || !a.workspace) return false;
  std::string why = call_declines(t, a);
  if (why.empty() && (!aligned16(dout) || !aligned16(out))) why = "a gradient that is not laid out for it";
  for (const AttentionSink* g : {&dq, &dk, &dv})
    if (why.empty() && (g->wide || g->add || !aligned16(g->data) || g->stride % 8))
      why = "a gradient that is not laid out for it";
  if (!why.empty()) return to_native_kernels(s, why, true);
  why = cudnn_unusable(s, t, shape_of(a),
                       a.deterministic ? CudnnPass::deterministic_backward : CudnnPass::backward);
  if (why.empty()) why = backward(s, t, dq, dk, dv, dout, out, lse, a);
  return why.empty() || to_native_kernels(s, why, false);
}

}  // namespace ltrain
