// Norms of rows that fit the registers of a block: every element is loaded and stored once, 16 bytes at a
// time. norm_cuda.cu handles longer rows, and rows that are not a multiple of a pack.
#pragma once
#include "kernels/cuda/column_sums_cuda.h"
#include "kernels/cuda/fast_math_cuda.h"
#include "kernels/cuda/matrix_cuda.h"
#include "kernels/elementwise/dropout_row_cuda.h"
#include "kernels/matmul/round_fp8_cuda.h"
#include "kernels/norm/norm_fp8.h"

namespace ltrain::cuda {

constexpr int kMostRowThreads = 512;
constexpr int64_t kMostRowChunks = 512;

template <class T>
struct NormForwardPointers {
  T *y, *sum;
  compute_t<T>*mean, *rstd;
  const T *x, *delta, *weight, *bias;

  NormForwardPointers(void* y, void* sum, void* mean, void* rstd, const void* x, const void* delta,
                      const void* weight, const void* bias)
      : y(static_cast<T*>(y)),
        sum(static_cast<T*>(sum)),
        mean(static_cast<compute_t<T>*>(mean)),
        rstd(static_cast<compute_t<T>*>(rstd)),
        x(static_cast<const T*>(x)),
        delta(static_cast<const T*>(delta)),
        weight(static_cast<const T*>(weight)),
        bias(static_cast<const T*>(bias)) {}
};

template <class T>
struct NormBackwardPointers {
  T* dx;
  compute_t<T>*dweight, *dbias;  // dbias may be null
  const T *dy, *x, *weight;
  const compute_t<T>*mean, *rstd;  // mean: null for rms
};

/// Calls f<K>(threads) with K, the packs of a row for each thread: one, or kMost if one needs more threads
/// than a block has. False if the row is too long even then.
template <int kMost, class F>
bool with_packs_a_thread(int64_t row_packs, F&& f) {
  const auto threads = [&](int k) {
    return static_cast<int>(((row_packs + k - 1) / k + kWarp - 1) / kWarp * kWarp);
  };
  if (row_packs > kMost * kMostRowThreads) return false;
  if (row_packs <= kMostRowThreads) {
    f.template operator()<1>(threads(1));
  } else {
    f.template operator()<kMost>(threads(kMost));
  }
  return true;
}

/// v = x + delta after dropout, rounded to T like `sum`.
template <bool kDropout, int N, class T>
__device__ __forceinline__ void add_delta(compute_t<T>* v, T* sum, const T* delta, int64_t at,
                                          const DropoutArgs& d, uint64_t call, int64_t col) {
  using A = compute_t<T>;
  A add[N], factor[N];
  load_values<N>(add, delta, at);
  if constexpr (kDropout) dropout_factors<N>(factor, d, call, col);
  for (int j = 0; j < N; ++j) v[j] += kDropout ? add[j] * factor[j] : add[j];
  const Pack<T, N> kept = rounded<T, N>(v);
  store(sum, at, kept);
  unpack(v, kept);
}

/// Norm of one row by one block. A thread has the packs threadIdx.x, threadIdx.x + blockDim.x, ... and calls
/// give(index, values) with each. share: 1 / cols.
template <class T, int K, bool kLayer, bool kDropout, class Give>
__device__ __forceinline__ void norm_row(const NormShape& shape, compute_t<T> share,
                                         const NormForwardPointers<T>& p, const DropoutArgs& dropout,
                                         int64_t row, Give&& give) {
  using A = compute_t<T>;
  constexpr int N = kPackOf<T>;
  A* scratch = shared_memory<A>();
  const int cols = static_cast<int>(shape.cols), packs = cols / N;
  const int64_t first = row * cols;
  const uint64_t call = kDropout ? dropout.call(row, cols) : 0;
  A v[K][N] = {};
  Raw<T> w[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int pack = threadIdx.x + k * blockDim.x;
    if (pack >= packs) continue;
    load_values<N>(v[k], p.x, first + pack * N);
    w[k].load(p.weight, pack * N);
    if (p.delta)
      add_delta<kDropout, N>(v[k], p.sum, p.delta, first + pack * N, dropout, call,
                             dropout.part * cols + pack * N);
  }
  A m = 0, squares = 0;
  if constexpr (kLayer) {
    for (int k = 0; k < K; ++k)
      for (int j = 0; j < N; ++j) m += v[k][j];
    m = block_reduce(m, Sum(), A(0), scratch) * share;
  }
  // Without a mean, missing packs are zero and add nothing.
  for (int k = 0; k < K; ++k)
    if (!kLayer || static_cast<int>(threadIdx.x + k * blockDim.x) < packs)
      for (int j = 0; j < N; ++j) squares += (v[k][j] - m) * (v[k][j] - m);
  squares = block_reduce(squares, Sum(), A(0), scratch);
  const A r = inverse_root(squares * share + A(shape.eps)), offset = A(shape.weight_offset);
  if (threadIdx.x == 0) {
    store_one(p.rstd, row, r);
    if (kLayer) store_one(p.mean, row, m);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int pack = threadIdx.x + k * blockDim.x;
    if (pack >= packs) continue;
    A by[N];
    w[k].values(by);
    for (int j = 0; j < N; ++j) v[k][j] = (v[k][j] - m) * r * (by[j] + offset);
    if (kLayer && p.bias) {
      A b[N];
      load_values<N>(b, p.bias, pack * N);
      for (int j = 0; j < N; ++j) v[k][j] += b[j];
    }
    give(first + pack * N, v[k]);
  }
}

template <class T, int K, bool kLayer, bool kDropout>
__global__ void __launch_bounds__(kMostRowThreads)
    norm_forward_row(NormShape shape, compute_t<T> share, const __grid_constant__ NormForwardPointers<T> p,
                     const __grid_constant__ DropoutArgs dropout) {
  norm_row<T, K, kLayer, kDropout>(
      shape, share, p, dropout, blockIdx.x,
      [&](int64_t at, const compute_t<T>* v) { store_values<kPackOf<T>>(p.y, at, v); });
}

/// FP8 output of a norm, and optionally the largest magnitude.
struct NormCodes {
  uint8_t* codes;
  const float* step;
  float* amax;  ///< may be null
};

/// One block for several rows.
template <class T, int K, bool kLayer, bool kDropout>
__global__ void __launch_bounds__(kMostRowThreads)
    norm_forward_fp8_row(NormShape shape, compute_t<T> share,
                         const __grid_constant__ NormForwardPointers<T> p,
                         const __grid_constant__ DropoutArgs dropout, NormCodes out) {
  const float inverse = 1.0f / *out.step;
  uint32_t most = 0;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x)
    norm_row<T, K, kLayer, kDropout>(shape, share, p, dropout, row, [&](int64_t at, const compute_t<T>* v) {
      store_rounded<T, kPackOf<T>>(out.codes, at, v, inverse, most);
    });
  if (out.amax) keep_largest(out.amax, most, shared_memory<uint32_t>());
}

/// Returns false, without work, if the rows do not fit.
template <class T>
bool norm_forward_in_registers(Stream& s, const NormShape& shape, const NormForwardPointers<T>& p,
                               const DropoutArgs& dropout) {
  constexpr int N = kPackOf<T>;
  if (shape.cols % N || !aligned({p.y, p.sum, p.x, p.delta, p.weight, p.bias})) return false;
  return with_packs_a_thread<4>(shape.cols / N, [&]<int K>(int threads) {
    const auto with_kind = [&]<bool kLayer>() {
      launch(s, dim3(static_cast<unsigned>(shape.rows)), threads, kWarp * sizeof(compute_t<T>),
             dropout.threshold ? norm_forward_row<T, K, kLayer, true> : norm_forward_row<T, K, kLayer, false>,
             shape, compute_t<T>(1.0 / static_cast<double>(shape.cols)), p, dropout);
    };
    shape.kind == NormKind::layer ? with_kind.template operator()<true>()
                                  : with_kind.template operator()<false>();
  });
}

/// norm_forward_in_registers with FP8 output, by `blocks` blocks.
template <class T>
bool norm_forward_fp8_in_registers(Stream& s, const NormShape& shape, const NormForwardPointers<T>& p,
                                   const DropoutArgs& dropout, const NormCodes& out, unsigned blocks) {
  constexpr int N = kPackOf<T>;
  if (shape.cols % N || !aligned({out.codes, p.sum, p.x, p.delta, p.weight, p.bias})) return false;
  return with_packs_a_thread<4>(shape.cols / N, [&]<int K>(int threads) {
    const auto with_kind = [&]<bool kLayer>() {
      launch(s, dim3(blocks), threads, kWarp * sizeof(compute_t<T>),
             dropout.threshold ? norm_forward_fp8_row<T, K, kLayer, true>
                               : norm_forward_fp8_row<T, K, kLayer, false>,
             shape, compute_t<T>(1.0 / static_cast<double>(shape.cols)), p, dropout, out);
    };
    shape.kind == NormKind::layer ? with_kind.template operator()<true>()
                                  : with_kind.template operator()<false>();
  });
}

/// A block handles a run of packs of row blockIdx.x (RowGrid).
template <class T, bool kDropout>
__global__ void residual_add_row(T* sum, const T* x, const T* delta, int64_t cols,
                                 const __grid_constant__ DropoutArgs dropout) {
  constexpr int N = kPackOf<T>;
  const int64_t row = blockIdx.x, col = row_pack() * N;
  if (col >= cols) return;
  compute_t<T> v[N];
  load_values<N>(v, x, row * cols + col);
  add_delta<kDropout, N>(v, sum, delta, row * cols + col, dropout, kDropout ? dropout.call(row, cols) : 0,
                         dropout.part * cols + col);
}

template <class T>
bool residual_add_packs(Stream& s, T* sum, const T* x, const T* delta, int64_t rows, int64_t cols,
                        const DropoutArgs& dropout) {
  constexpr int N = kPackOf<T>;
  if (cols % N || !aligned({sum, x, delta})) return false;
  const RowGrid g(rows, cols / N);
  launch(s, g.grid, g.threads, 0, dropout.threshold ? residual_add_row<T, true> : residual_add_row<T, false>,
         sum, x, delta, cols, dropout);
  return true;
}

/// Sums of n numbers over the threads of the block; every thread gets them. `scratch`: n kWarp elements of
/// shared memory, different from the previous call's.
template <int n, class A>
__device__ __forceinline__ void block_sums(A (&v)[n], A* scratch) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  for (int i = 0; i < n; ++i) {
    v[i] = warp_reduce(v[i], Sum());
    if (lane == 0) scratch[i * kWarp + warp] = v[i];
  }
  __syncthreads();
  for (int i = 0; i < n; ++i) v[i] = warp_reduce(lane < warps ? scratch[i * kWarp + lane] : A(0), Sum());
}

/// Rows of dy, x and dx that a block of norm_backward_rows has in shared memory, the one that it computes and
/// those that it copies ahead. Two of long rows fit a block on every card.
template <int K>
constexpr int kNormRows = K == 1 ? 4 : 2;

/// Shared memory of norm_backward_rows: two sets of sums, used alternately, and the rows.
template <class A, int K>
constexpr int64_t norm_backward_shared(int threads) {
  return 4 * kWarp * static_cast<int64_t>(sizeof(A)) + int64_t{kNormRows<K>} * 3 * K * threads * 16;
}

/// One block for each chunk of the rows. It writes the chunk's part of the gradients of weight and bias:
/// partial (chunks, cols), with the bias behind the weight. A thread copies the packs that it reads itself.
template <class T, int K, bool kLayer>
__global__ void __launch_bounds__(kMostRowThreads)
    norm_backward_rows(NormShape shape, compute_t<T> share, const __grid_constant__ NormBackwardPointers<T> p,
                       compute_t<T>* partial) {
  using A = compute_t<T>;
  constexpr int N = kPackOf<T>, kSums = kLayer ? 2 : 1;
  A* scratch = shared_memory<A>();
  Pack<T, N>* const own = reinterpret_cast<Pack<T, N>*>(scratch + 4 * kWarp) + threadIdx.x;
  const auto copied = [&](int64_t row, int operand, int k) {
    const unsigned slot = static_cast<unsigned>(row) % kNormRows<K>;
    return own + ((slot * 3 + operand) * K + k) * blockDim.x;
  };
  const int64_t chunk = blockIdx.x, chunks = gridDim.x;
  const int64_t begin = shape.rows * chunk / chunks, end = shape.rows * (chunk + 1) / chunks;
  const int cols = static_cast<int>(shape.cols), packs = cols / N;
  const auto has = [&](int k) { return static_cast<int>(threadIdx.x + k * blockDim.x) < packs; };
  const auto col = [&](int k) { return static_cast<int>(threadIdx.x + k * blockDim.x) * N; };
  A w[K][N] = {}, dw[K][N] = {}, db[K][N] = {};
  const auto fetch = [&](int64_t row) {  // zeros for missing packs; a group without copies beyond the end
    if (row < end)
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const int64_t at = row * cols + (has(k) ? col(k) : 0);
        copy_async_16(copied(row, 0, k), p.dy + at, has(k));
        copy_async_16(copied(row, 1, k), p.x + at, has(k));
        if (!shape.first) copy_async_16(copied(row, 2, k), p.dx + at, has(k));
      }
    commit_copies();
  };
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (has(k)) {
      load_values<N>(w[k], p.weight, col(k));
      for (int j = 0; j < N; ++j) w[k][j] += A(shape.weight_offset);
    }
  constexpr int kAhead = kNormRows<K> - 1;
  for (int i = 0; i < kAhead; ++i) fetch(begin + i);
  A next_r = 0, next_m = 0;
  const auto next_statistics = [&](int64_t row) {
    if (row < end) next_r = load_one(p.rstd, row), next_m = kLayer ? load_one(p.mean, row) : A(0);
  };
  next_statistics(begin);
  for (int64_t row = begin; row < end; ++row) {
    const A r = next_r, m = next_m;
    A hat[K][N], g[K][N], sums[kSums] = {};  // sums of g hat, and of g
    wait_for_older_copies<kAhead - 1>();
    fetch(row + kAhead);
    next_statistics(row + 1);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A dy[N], x[N];
      unpack(dy, *copied(row, 0, k));
      unpack(x, *copied(row, 1, k));
      for (int j = 0; j < N; ++j) {
        hat[k][j] = (x[j] - m) * r;
        g[k][j] = dy[j] * w[k][j];
        dw[k][j] += dy[j] * hat[k][j];
        sums[0] += g[k][j] * hat[k][j];
        if constexpr (kLayer) db[k][j] += dy[j], sums[1] += g[k][j];
      }
    }
    block_sums(sums, scratch + (row - begin) % 2 * kSums * kWarp);
    const A dot = sums[0] * share, total = kLayer ? sums[kSums - 1] * share : A(0);
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (has(k)) {
        A d[N];
        for (int j = 0; j < N; ++j) d[j] = (g[k][j] - total - hat[k][j] * dot) * r;
        if (!shape.first) {
          A sum[N];
          unpack(sum, *copied(row, 2, k));
          for (int j = 0; j < N; ++j) d[j] += sum[j];
        }
        store_values<N>(p.dx, row * cols + col(k), d);
      }
  }
  wait_for_copies();
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (has(k)) {
      store_values<N>(partial, chunk * cols + col(k), dw[k]);
      if (kLayer && p.dbias) store_values<N>(partial, (chunks + chunk) * cols + col(k), db[k]);
    }
}

/// Number of chunks of rows, each with its own partial sums; fewer if the scratch cannot hold `bytes_a_chunk`
/// for each.
inline int64_t row_chunks(int64_t rows, int64_t bytes_a_chunk, int64_t most) {
  const int64_t fit = std::max<int64_t>(1, kScratchBytes / bytes_a_chunk);
  return std::min(fit, std::clamp<int64_t>(rows / 16, 1, most));
}

/// Backward of norm_forward_in_registers, with the gradients of weight and bias.
template <class T>
bool norm_backward_in_registers(Stream& s, const NormShape& shape, const NormBackwardPointers<T>& p) {
  using A = compute_t<T>;
  constexpr int N = kPackOf<T>;
  if (shape.cols % N || !aligned({p.dx, p.dy, p.x, p.weight})) return false;
  const int64_t bytes = shape.cols * static_cast<int64_t>(sizeof(A)) * (p.dbias ? 2 : 1);
  // Blocks of short rows have few warps: more blocks keep as many loads in flight.
  const int64_t chunks =
      row_chunks(shape.rows, bytes, shape.cols <= 1024 ? 2 * kMostRowChunks : kMostRowChunks);
  return with_packs_a_thread<2>(shape.cols / N, [&]<int K>(int threads) {
    A* partial = static_cast<A*>(scratch(s, chunks * bytes));
    launch(s, dim3(static_cast<unsigned>(chunks)), threads, norm_backward_shared<A, K>(threads),
           p.mean ? norm_backward_rows<T, K, true> : norm_backward_rows<T, K, false>, shape,
           A(1.0 / static_cast<double>(shape.cols)), p, partial);
    sum_chunks(s, p.dweight, p.dbias, static_cast<const A*>(partial), chunks, shape.cols, shape.accumulate);
  });
}

}  // namespace ltrain::cuda
