// Comparison of the Hopper kernels with the kernels for all cards (attention_check.h).
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/attention/attention_check.h"
#include "kernels/attention/attention_mma.h"
#include "kernels/attention/attention_wgmma.h"
#include "kernels/cuda/kernel_cuda.h"
#include "kernels/tensor/kernel_trial.h"

namespace ltrain {
namespace cuda {
namespace {

// A kernel has two or three buffers of tiles of up to 128 rows, and owns up to 192 rows. These lengths use
// all buffers several times and are multiples of no tile. Fibres of the emulated device are slow.
#ifdef LTRAIN_CUDA_EMULATED
constexpr int64_t kSeq = 200;
#else
constexpr int64_t kSeq = 1100;
#endif

constexpr int64_t kFewBlocks = 3;  // grid of the forward: each block has several tiles of queries

constexpr int64_t kOwn = int64_t{1} << 20;  // part of the stream's scratch that the kernels use themselves

/// A problem. `blocks`: two runs of queries, a quarter of the sequence each, against all keys.
struct Problem {
  const char* name;
  int64_t heads, kv_heads;
  bool documents, blocks, add;  ///< add: gradients are added in f32
};
constexpr Problem kProblems[] = {
    {"grouped heads", 4, 1, false, false, false},
    {"documents", 2, 2, true, false, false},
    {"some queries against some keys, added to what is there", 2, 1, false, true, true}};

/// Fills with a pseudo-random number in (-size, size) for each index.
template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_check_fill(T* to, int64_t n, uint32_t seed, float size) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    x ^= x >> 16;
    put(to, i, size * (static_cast<float>(x >> 8) * (2.0f / (1 << 24)) - 1.0f));
  }
}

/// For each row of `width` channels: sum of squares of a - b, and sum of squares of b. One warp a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_check_rows(float* to, const T* a, const T* b, int64_t rows, int width) {
  constexpr int kWarps = kThreads / kWarp;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  float difference = 0, square = 0;
  for (int c = threadIdx.x % kWarp; row < rows && c < width; c += kWarp) {
    const float x = get(a, row * width + c), y = get(b, row * width + c);
    difference += (x - y) * (x - y), square += y * y;
  }
  difference = warp_reduce(difference, Sum()), square = warp_reduce(square, Sum());
  if (row < rows && threadIdx.x % kWarp == 0) to[2 * row] = difference, to[2 * row + 1] = square;
}

/// One problem, computed by both kernels.
template <class T>
class Comparison {
 public:
  Comparison(Stream& s, DType t, int64_t head_dim, int64_t seq, const Problem& problem)
      : s_(s), t_(t), problem_(problem), dim_(head_dim), seq_(seq) {
    const int64_t quarter = seq / 4;
    args_.seq = seq, args_.heads = args_.all_heads = problem.heads, args_.kv_heads = problem.kv_heads;
    args_.head_dim = args_.value_dim = head_dim;
    args_.k_at = Positions(seq);
    args_.q_at = problem.blocks ? Positions::two_runs(0, seq - quarter, quarter, seq) : Positions(seq);
    const int64_t q = args_.q_at.rows * problem.heads * head_dim, k = seq * problem.kv_heads * head_dim;
    const int64_t inputs = (2 * (2 * q + 2 * k) + 255) / 256 * 256;
    const int64_t result_bytes =
        (4 * (2 * q + 2 * k) + 4 * args_.q_at.rows * problem.heads + 255) / 256 * 256;
    const int64_t rows_bytes = 8 * std::max(args_.q_at.rows * problem.heads, seq * problem.kv_heads);
    documents_.resize(static_cast<size_t>(seq));
    for (int64_t i = 0; i < seq; ++i)  // documents of three lengths
      documents_[static_cast<size_t>(i)] = static_cast<int32_t>(i < seq / 8   ? 0
                                                                : i < seq / 2 ? seq / 8
                                                                              : seq / 2);
    char* at = static_cast<char*>(scratch(s, kOwn + inputs + 2 * result_bytes + rows_bytes + 4 * seq)) + kOwn;
    const auto take = [&](int64_t bytes) { return std::exchange(at, at + bytes); };
    q_ = take(2 * q), k_ = take(2 * k), v_ = take(2 * k), dout_ = take(2 * q);
    results_[0] = take(result_bytes), results_[1] = take(result_bytes);
    rows_ = reinterpret_cast<float*>(take(rows_bytes));
    if (problem.documents) {
      s_.copy(at, documents_.data(), 4 * seq);
      s_.synchronize();
      args_.documents = reinterpret_cast<const int32_t*>(at);
    }
    args_.q = q_, args_.k = k_, args_.v = v_;
    args_.q_stride = problem.heads * head_dim, args_.k_stride = args_.v_stride = problem.kv_heads * head_dim;
    // Large queries make attention peaked, so that results do not shrink with the number of keys.
    fill(q_, q, 1, 8), fill(k_, k, 2, 1), fill(v_, k, 3, 1), fill(dout_, q, 4, 1);
  }

  std::string run(const AttentionTamper& tamper) {
    Result by_wgmma = result(0), by_mma = result(1);
    attention_wgmma_forward(s_, t_, false, by_wgmma.out, by_wgmma.lse, args_, kFewBlocks);
    attention_mma_forward(s_, t_, false, by_mma.out, by_mma.lse, args_);
    // Both backwards get the same out and lse, so that only their own differences remain.
    backward([](auto&&... of) { attention_wgmma_backward(of...); }, by_wgmma, by_mma);
    backward(attention_mma_backward, by_mma, by_mma);
    const int64_t q_rows = args_.q_at.rows * args_.heads, k_rows = seq_ * args_.kv_heads;
    const bool wide = problem_.add;
    const struct {
      const char* name;
      char *a, *b;
      int64_t rows, heads;  ///< rows over all heads, number of heads
      bool wide;
    } tensors[] = {{"out", by_wgmma.out, by_mma.out, q_rows, args_.heads, false},
                   {"dq", by_wgmma.dq, by_mma.dq, q_rows, args_.heads, wide},
                   {"dk", by_wgmma.dk, by_mma.dk, k_rows, args_.kv_heads, wide},
                   {"dv", by_wgmma.dv, by_mma.dv, k_rows, args_.kv_heads, wide}};
    for (const auto& x : tensors) {
      if (tamper) tamper(s_, x.name, x.a, x.rows * dim_, x.wide);
      std::string why =
          compare(x.name, x.a, x.b, x.rows, static_cast<int>(dim_), static_cast<int>(x.heads), x.wide);
      if (!why.empty()) return why;
    }
    return compare("lse", by_wgmma.lse, by_mma.lse, q_rows, 1, 0, true);
  }

 private:
  struct Result {
    char *out, *dq, *dk, *dv, *lse;
  };
  Result result(int which) const {
    const int64_t q = 4 * args_.q_at.rows * args_.heads * dim_, k = 4 * seq_ * args_.kv_heads * dim_;
    char* at = results_[which];
    const auto take = [&](int64_t bytes) { return std::exchange(at, at + bytes); };
    return {take(q), take(q), take(k), take(k), take(0)};
  }
  void fill(char* to, int64_t n, uint32_t seed, float size) {
    launch(s_, blocks_for(n, kThreads), kThreads, 0, attention_check_fill<T>, reinterpret_cast<T*>(to), n,
           seed, size);
  }
  template <class F>
  void backward(F&& kernels, const Result& to, const Result& of) {
    const auto sink = [&](char* at, int64_t heads, int64_t rows, uint32_t seed) {
      const int64_t n = rows * heads * dim_;
      if (problem_.add)
        launch(s_, blocks_for(n, kThreads), kThreads, 0, attention_check_fill<float>,
               reinterpret_cast<float*>(at), n, seed, 0.01f);
      return AttentionSink{at, heads * dim_, problem_.add, problem_.add};
    };
    const AttentionSink dq = sink(to.dq, args_.heads, args_.q_at.rows, 5);
    const AttentionSink dk = sink(to.dk, args_.kv_heads, seq_, 6), dv = sink(to.dv, args_.kv_heads, seq_, 7);
    kernels(s_, t_, dq, dk, dv, dout_, of.out, of.lse, args_, kOwn);
  }
  std::string compare(const char* name, const char* a, const char* b, int64_t rows, int width, int heads,
                      bool wide) {
    const dim3 grid(static_cast<unsigned>((rows + kThreads / kWarp - 1) / (kThreads / kWarp)));
    const auto go = [&]<class E>(const E* x, const E* y) {
      launch(s_, grid, kThreads, 0, attention_check_rows<E>, rows_, x, y, rows, width);
    };
    wide ? go(reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b))
         : go(reinterpret_cast<const T*>(a), reinterpret_cast<const T*>(b));
    std::vector<float> found(static_cast<size_t>(2 * rows));
    s_.copy(found.data(), rows_, 8 * rows);
    s_.synchronize();
    double difference = 0, square = 0;
    for (int64_t i = 0; i < rows; ++i) difference += found[2 * i], square += found[2 * i + 1];
    const bool is_lse = heads == 0;
    // Both round probabilities and results to the type, after sums in a different order: about a quarter of a
    // unit in the last place on average over a tensor, and more in single rows. Logarithms are not rounded.
    const double unit = is_lse ? 1e-5 : t_ == DType::bf16 ? 1.0 / 256 : 1.0 / 2048;
    const double of_tensor = 1.25 * unit, of_row = 6 * unit,
                 least = 0.01 * square / static_cast<double>(rows);
    for (int64_t i = 0; i < rows; ++i) {
      const double d = found[2 * i], most = of_row * of_row * std::max<double>(found[2 * i + 1], least);
      if (d <= most) continue;
      return fmt::format("{}: {} differs by {:.3g} % in row {}{}", problem_.name, name,
                         100 * std::sqrt(d / std::max<double>(found[2 * i + 1], least)),
                         is_lse ? i : i / heads, is_lse ? "" : fmt::format(" of head {}", i % heads));
    }
    if (difference <= of_tensor * of_tensor * square && square > 0) return "";
    return fmt::format("{}: {} differs by {:.3g} %", problem_.name, name,
                       100 * std::sqrt(difference / square));
  }

  Stream& s_;
  DType t_;
  const Problem& problem_;
  int64_t dim_, seq_;
  AttentionArgs args_;
  std::vector<int32_t> documents_;
  char *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *dout_ = nullptr, *results_[2] = {};
  float* rows_ = nullptr;
};

}  // namespace
}  // namespace cuda

std::string compare_attention_kernels(Stream& s, DType t, int64_t head_dim, int64_t seq,
                                      const AttentionTamper& tamper) {
  using namespace cuda;
  for (const Problem& problem : kProblems) {
    const auto run = [&]<class T>() {
      return Comparison<T>(s, t, head_dim, seq ? seq : kSeq, problem).run(tamper);
    };
    if (std::string why = t == DType::bf16 ? run.template operator()<bf16>() : run.template operator()<f16>();
        !why.empty())
      return why;
  }
  return "";
}

std::string wgmma_unusable(Stream& s, DType t, int64_t head_dim, bool* news) {
  const auto compare = [=](Stream& stream) { return compare_attention_kernels(stream, t, head_dim); };
  return why_unusable(
      s, {{"attention", std::string(dtype_name(t)), std::to_string(head_dim)}, "the mma kernels", compare},
      news);
}

}  // namespace ltrain
