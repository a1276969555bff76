// The kernels for Hopper against the ones for all cards (attention_check.h).
#include <atomic>
#include <vector>

#include "kernels/attention/attention_check.h"
#include "kernels/attention/attention_mma.h"
#include "kernels/attention/attention_wgmma.h"
#include "kernels/cuda/kernel_cuda.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kThreads = 256;
// Several tiles of every kernel, and a part of one.
constexpr int64_t kSeq = 300, kHeads = 2;
constexpr int64_t kBuffer = int64_t{1} << 20;  // of scratch, for each tensor; the first is the kernels' own

/// Some number in (-1, 1) for each index.
template <class T>
__global__ void __launch_bounds__(kThreads) attention_check_fill(T* to, int64_t n, uint32_t seed) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    put(to, i, static_cast<float>(x >> 8) * (2.0f / (1 << 24)) - 1.0f);
  }
}

/// {largest difference, largest of b}; a NaN anywhere is an infinite difference.
template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_check_compare(float* to, const T* a, const T* b, int64_t n) {
  float difference = 0, largest = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float x = get(a, i), y = get(b, i), d = fabs(x - y);
    difference = std::max(difference, d < INFINITY ? d : INFINITY);
    largest = std::max(largest, fabs(y));
  }
  float* const scratch = shared_memory<float>();
  difference = block_reduce(difference, Max(), 0.0f, scratch);
  largest = block_reduce(largest, Max(), 0.0f, scratch);
  if (threadIdx.x == 0) to[0] = difference, to[1] = largest;
}

template <class T>
std::string compare(Stream& s, DType t, int64_t head_dim) {
  AttentionShape shape;
  shape.seq = kSeq, shape.heads = kHeads, shape.head_dim = head_dim;
  char* const memory = static_cast<char*>(scratch(s, 10 * kBuffer)) + kBuffer;
  const auto buffer = [&](int i) { return memory + i * kBuffer; };
  T *const qkv = reinterpret_cast<T*>(buffer(0)), *const dout = reinterpret_cast<T*>(buffer(1));
  const int64_t wide = kSeq * shape.qkv_width(), narrow = kSeq * kHeads * head_dim;
  const auto fill = [&](T* to, int64_t n, uint32_t seed) {
    launch(s, blocks_for(n, kThreads), kThreads, 0, attention_check_fill<T>, to, n, seed);
  };
  fill(qkv, wide, 1), fill(dout, narrow, 2);
  const AttentionArgs args = fused_attention_args(t, qkv, shape, {});
  attention_wgmma_forward(s, t, false, buffer(2), buffer(4), args);
  attention_mma_forward(s, t, false, buffer(3), buffer(5), args);
  const auto sink = [&](int buffer_of, int64_t first_head) {
    return AttentionSink{buffer(buffer_of) + 2 * first_head * head_dim, shape.qkv_width(), false, false};
  };
  // Both from the same outputs: what is left of differences is the backward's own.
  attention_wgmma_backward(s, t, sink(6, 0), sink(6, kHeads), sink(6, kHeads + 1), dout, buffer(3), buffer(5),
                           args, kBuffer);
  attention_mma_backward(s, t, sink(7, 0), sink(7, kHeads), sink(7, kHeads + 1), dout, buffer(3), buffer(5),
                         args, kBuffer);

  struct Pair {
    const char* what;
    int first;  ///< of two buffers
    int64_t elements;
    bool wide;
  };
  const Pair pairs[] = {
      {"outputs", 2, narrow, false}, {"log-sums", 4, kSeq * kHeads, true}, {"gradients", 6, wide, false}};
  std::vector<float> found(2 * std::size(pairs));
  float* const results = reinterpret_cast<float*>(buffer(8));
  for (size_t i = 0; i < std::size(pairs); ++i) {
    const Pair& p = pairs[i];
    const int64_t shared = sizeof(float) * kWarp;
    if (p.wide) {
      launch(s, dim3(1), kThreads, shared, attention_check_compare<float>, results + 2 * i,
             reinterpret_cast<float*>(buffer(p.first)), reinterpret_cast<float*>(buffer(p.first + 1)),
             p.elements);
    } else {
      launch(s, dim3(1), kThreads, shared, attention_check_compare<T>, results + 2 * i,
             reinterpret_cast<T*>(buffer(p.first)), reinterpret_cast<T*>(buffer(p.first + 1)), p.elements);
    }
  }
  s.copy(found.data(), results, static_cast<int64_t>(sizeof(float) * found.size()));
  s.synchronize();
  // Both round probabilities and results to the type, after sums in another order.
  const float rounded = t == DType::bf16 ? 1.0f / 128 : 1.0f / 1024;
  for (size_t i = 0; i < std::size(pairs); ++i) {
    const float difference = found[2 * i], largest = found[2 * i + 1];
    if (!(difference <= (pairs[i].wide ? 1e-4f : rounded) * largest) || !(largest > 0))
      return fmt::format("{} differ by {} where the largest is {}", pairs[i].what, difference, largest);
  }
  return "";
}

}  // namespace
}  // namespace cuda

std::string compare_attention_kernels(Stream& s, DType t, int64_t head_dim) {
  return t == DType::bf16 ? cuda::compare<bf16>(s, t, head_dim) : cuda::compare<f16>(s, t, head_dim);
}

bool wgmma_agrees(Stream& s, DType t, int64_t head_dim) {
  enum { unknown, yes, no };
  static std::atomic<int> known[2][2];
  std::atomic<int>& state = known[t == DType::bf16][head_dim == 64];
  if (state == unknown) {
    if (s.recording()) return false;
    // Not under a lock: what this stream waits for may need another rank of this process to go on.
    const std::string difference = compare_attention_kernels(s, t, head_dim);
    int before = unknown;
    if (state.compare_exchange_strong(before, difference.empty() ? yes : no) && !difference.empty())
      fmt::print(stderr,
                 "attention: the wgmma kernels for {} with head dim {} are wrong on this GPU, and are not "
                 "used: {}; please report it\n",
                 dtype_name(t), head_dim, difference);
  }
  return state == yes;
}

}  // namespace ltrain
