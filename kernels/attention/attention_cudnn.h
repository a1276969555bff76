// Attention by cuDNN's graphs, for the calls that the library supports. This header describes a call in plain
// terms. attention_cudnn_cuda.cpp, the only file with cuDNN's frontend, maps the description to a graph.
// emulated_cudnn_cuda.cpp computes the description on the emulated GPU.
#pragma once
#include <compare>
#include <string>

#include "kernels/attention/attention.h"

namespace ltrain {

/// Elements from sample to sample, from head to head and from row to row. Channels of a head are contiguous.
struct CudnnStrides {
  int64_t sample = 0, head = 0, row = 0;
  auto operator<=>(const CudnnStrides&) const = default;
};

/// One causal attention over full sequences, (batch, heads, seq, head_dim). Key of the plan cache.
struct CudnnAttention {
  bool backward = false;
  bool deterministic = false;  ///< backward sums in a fixed order
  DType type = DType::bf16;    ///< all tensors but lse, which is f32: natural logarithm of the sum
  int64_t batch = 1, heads = 1, kv_heads = 1, seq = 1, head_dim = 64;
  double scale = 1;  ///< factor of the scores
  CudnnStrides q, k, v, out, lse;
  CudnnStrides dout, dq, dk, dv;  ///< backward only
  int64_t workspace = 0;          ///< bytes of workspace available
  auto operator<=>(const CudnnAttention&) const = default;
};

/// Addresses of the tensors. Forward writes out and lse, backward reads them.
struct CudnnBuffers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *out = nullptr, *lse = nullptr;
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void* workspace = nullptr;  ///< null: the stream's scratch
};

/// Empty if the library is present in a supported version, else the reason.
std::string cudnn_missing();
/// "9.19.0"; valid only if cudnn_missing() is empty.
std::string cudnn_version();
/// Enqueues the call on the stream. Returns the reason if the library has no plan for it, else an empty
/// string. A plan is made when a description is first met on a GPU, which takes seconds. No plan is made
/// during graph capture.
std::string cudnn_attention(Stream& s, const CudnnAttention& what, const CudnnBuffers& at);

/// Bytes that backward may need: a bound over the workspaces of cuDNN 9.19 on sm_80, sm_90 and sm_100, of
/// which tests/cuda_plans has a table. They hold sums of rows, dq in f32 (twice on sm_80), and dk and dv of
/// each query head if heads share keys. `deterministic`: bytes of one CudnnSlice, which keeps pairs of
/// positions and no f32 gradient.
int64_t cudnn_backward_workspace(const AttentionShape& shape, bool deterministic = false);

/// One call of the deterministic backward. It keeps the gradients of all probabilities, 2 bytes for each pair
/// of positions of each head. A slice is therefore some of the samples, or some groups of one sample's heads;
/// the counts divide the totals.
struct CudnnSlice {
  int64_t samples = 1, kv_heads = 1;
  int64_t bytes = 0;  ///< bound of its workspace
};
/// The largest slice with a workspace within `bytes`, or the smallest slice if none fits. The full problem if
/// seq % 4 != 0: slices would not begin at multiples of 16 bytes.
CudnnSlice cudnn_slice(const AttentionShape& shape, int64_t bytes);
/// Slice size of cudnn_backward_workspace(): 16 heads of 8 Ki positions, or 4 heads of 16 Ki.
inline constexpr int64_t kCudnnSliceBytes = int64_t{2304} << 20;

/// Reason, known from the recipe alone, why cuDNN is not asked; empty if it is. `window`:
/// AttentionShape::window. `value_dim`: channels of a value, 0: head_dim.
std::string cudnn_declines(DType t, int64_t head_dim, bool dropout, bool documents, int64_t window,
                           bool soft_cap = false, int64_t value_dim = 0);

/// Reason why attention of this kind does not go to cuDNN here; empty if it does. The first call of a process
/// compares cuDNN with the native kernels on a small problem of the kind, which takes seconds. A returned
/// reason is not printed on stderr again. `s`: stream of the calls.
enum class CudnnPass : uint8_t { forward, backward, deterministic_backward };
std::string cudnn_unusable(Stream& s, DType t, const AttentionShape& shape, CudnnPass pass);
/// For tests: the next call compares again, and reasons are printed again.
void forget_cudnn_checks();

/// Runs the call by cuDNN if the stream's attention_backend, the call and the machine allow it. Returns false
/// if the caller's native kernels are to run, which write the full result; a reason that the recipe does not
/// show was printed on stderr, once. Throws instead if the backend is `cudnn`.
bool attention_forward_by_cudnn(Stream& s, DType t, bool wide_out, void* out, void* lse,
                                const AttentionArgs& a);
/// Backward by cuDNN, under the same rules. Needs a workspace, and gradients that are neither added to nor
/// wide.
bool attention_backward_by_cudnn(Stream& s, DType t, const AttentionSink& dq, const AttentionSink& dk,
                                 const AttentionSink& dv, const void* dout, const void* out, const void* lse,
                                 const AttentionArgs& a);

}  // namespace ltrain
