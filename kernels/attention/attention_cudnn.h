// Attention of cuDNN's graphs, where the library takes a call. What it is asked for is described in plain
// terms here; attention_cudnn_cuda.cpp, the one file with its frontend, maps the description to a graph, and
// emulated_cudnn_cuda.cpp computes it literally where there is no GPU.
#pragma once
#include <compare>
#include <string>

#include "kernels/attention/attention.h"

namespace ltrain {

/// Elements from sample to sample, head to head, row to row. Channels of a head are neighbours.
struct CudnnStrides {
  int64_t sample = 0, head = 0, row = 0;
  auto operator<=>(const CudnnStrides&) const = default;
};

/// One causal attention of whole sequences, (batch, heads, seq, head_dim). Plans are kept by it.
struct CudnnAttention {
  bool backward = false;
  bool deterministic = false;  ///< backward's sums are in an order
  DType type = DType::bf16;    ///< of all but lse, which is f32: the natural logarithm of the sum
  int64_t batch = 1, heads = 1, kv_heads = 1, seq = 1, head_dim = 64;
  double scale = 1;  ///< of the products of queries and keys
  CudnnStrides q, k, v, out, lse;
  CudnnStrides dout, dq, dk, dv;  ///< backward's
  int64_t workspace = 0;          ///< bytes that there are for it
  auto operator<=>(const CudnnAttention&) const = default;
};

/// Where the elements lie. Backward reads out and lse, forward writes them.
struct CudnnBuffers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *out = nullptr, *lse = nullptr;
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void* workspace = nullptr;  ///< null: the stream's scratch
};

/// Empty where the library is here, in a version that is known to do; else why not.
std::string cudnn_missing();
/// "9.19.0"; only where nothing is missing.
std::string cudnn_version();
/// Puts it on the stream, unless the library has no plan for it: then why not. A plan is made, which takes
/// seconds, when a description is first met on a GPU; not while a graph is recorded.
std::string cudnn_attention(Stream& s, const CudnnAttention& what, const CudnnBuffers& at);

/// Bytes that backward may need: a bound over what cuDNN 9.19 asks for on sm_80, sm_90 and sm_100, of which
/// tests/cuda_plans has a table. Sums of rows, the queries' gradient in f32 (twice on sm_80), and key-value
/// gradients of each query head where heads share them. `deterministic`: of one of its slices, which keeps
/// pairs of positions and no gradient in f32.
int64_t cudnn_backward_workspace(const AttentionShape& shape, bool deterministic = false);

/// What one call of the deterministic backward computes: it keeps the gradients of all probabilities, 2 bytes
/// for each pair of positions of each head, so that a call has some samples, or some groups of a sample's
/// heads, as many as divide them.
struct CudnnSlice {
  int64_t samples = 1, kv_heads = 1;
  int64_t bytes = 0;  ///< that its workspace may need
};
/// The largest whose workspace is within `bytes`; the smallest where none is. All, where slices would not
/// begin at multiples of 16 bytes: the sequence is no multiple of 4.
CudnnSlice cudnn_slice(const AttentionShape& shape, int64_t bytes);
/// Where cudnn_backward_workspace() cuts: 16 heads of 8 Ki positions, or 4 of 16 Ki.
inline constexpr int64_t kCudnnSliceBytes = int64_t{2304} << 20;

/// Why cuDNN is not asked, of what a recipe can say; empty where it is. `window`: AttentionShape's.
/// `value_dim`: channels of a value, 0: head_dim.
std::string cudnn_declines(DType t, int64_t head_dim, bool dropout, bool documents, int64_t window,
                           bool soft_cap = false, int64_t value_dim = 0);

/// Why attention of this kind does not go to cuDNN here; empty where it does. When first asked in a process
/// this compares cuDNN with the kernels here on a small problem of the kind, which takes seconds. What it
/// returns is not said on stderr any more. `s`: where the calls would go.
enum class CudnnPass : uint8_t { forward, backward, deterministic_backward };
std::string cudnn_unusable(Stream& s, DType t, const AttentionShape& shape, CudnnPass pass);
/// For tests: the next call compares again, and reasons are said again.
void forget_cudnn_checks();

/// The call by cuDNN, where the stream's attention_backend, the call and the machine let it. False: the
/// caller's native kernels are to, which write all of the result; a reason that no recipe shows was said on
/// stderr, once. Fails instead where the backend is `cudnn`.
bool attention_forward_by_cudnn(Stream& s, DType t, bool wide_out, void* out, void* lse,
                                const AttentionArgs& a);
/// The same; only in a workspace, and of no gradient that is added to or wide.
bool attention_backward_by_cudnn(Stream& s, DType t, const AttentionSink& dq, const AttentionSink& dk,
                                 const AttentionSink& dv, const void* dout, const void* out, const void* lse,
                                 const AttentionArgs& a);

}  // namespace ltrain
