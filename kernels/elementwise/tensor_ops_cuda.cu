#include "kernels/cuda/column_sums_cuda.h"
#include "kernels/cuda/pack_cuda.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/tensor/rng.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int64_t kSquareBlocks = 512;  // blocks that sum the squares of one tensor, on any card

template <class T, class F, int P>
__global__ void cast(T* out, const F* in, int64_t n) {
  over_packs<P>(n, [&]<int N>(int64_t i) {
    compute_t<F> x[N];
    load_values<N>(x, in, i);
    compute_t<T> y[N];
    for (int j = 0; j < N; ++j) y[j] = static_cast<compute_t<T>>(x[j]);
    store_values<N>(out, i, y);
  });
}

template <class T, int P>
__global__ void add(T* y, const T* x, int64_t n) {
  over_packs<P>(n, [&]<int N>(int64_t i) {
    compute_t<T> to[N], from[N];
    load_values<N>(to, y, i);
    load_values<N>(from, x, i);
    for (int j = 0; j < N; ++j) to[j] += from[j];
    store_values<N>(y, i, to);
  });
}

/// A block handles a run of packs of row blockIdx.x (RowGrid).
template <class T, int N>
__global__ void add_vector(T* y, const T* x, int64_t row_packs) {
  const int64_t cols = row_packs * N, col = row_pack() * N, at = blockIdx.x * cols + col;
  if (col >= cols) return;
  compute_t<T> to[N], from[N];
  load_values<N>(to, y, at);
  load_values<N>(from, x, col);
  for (int j = 0; j < N; ++j) to[j] += from[j];
  store_values<N>(y, at, to);
}

template <class T, int P>
__global__ void scale_by(T* y, compute_t<T> factor, int64_t n) {
  const Pack<T, 1> by = rounded<T, 1>(&factor);
  over_packs<P>(n, [&]<int N>(int64_t i) {
    compute_t<T> to[N];
    load_values<N>(to, y, i);
    for (int j = 0; j < N; ++j) to[j] *= get(by.v, 0);
    store_values<N>(y, i, to);
  });
}

/// Parts of one launch.
constexpr int kSquareParts = 100;
struct SquareParts {
  SquaresPart part[kSquareParts];
  int first[kSquareParts + 1];  ///< each part's first block, and the end
  int run[kSquareParts + 1];    ///< the first part of each run of parts that share a total, and the end
};

/// Partial sums of squares. `first` assigns blocks to parts; the threads of a part's blocks take its packs
/// alternately. The order of the sum depends on the part's number of elements alone: a pack that is not
/// aligned is loaded element by element.
template <class T>
__global__ void sum_squares(double* partial, const __grid_constant__ SquareParts parts) {
  constexpr int P = kPackOf<T>;
  int part = 0;
  while (static_cast<int>(blockIdx.x) >= parts.first[part + 1]) ++part;
  const T* x = static_cast<const T*>(parts.part[part].x);
  const int64_t n = parts.part[part].elements, block = static_cast<int>(blockIdx.x) - parts.first[part],
                stride = int64_t{parts.first[part + 1] - parts.first[part]} * blockDim.x;
  const int64_t own = block * blockDim.x + threadIdx.x;
  double sum = 0;
  const auto add = [&](compute_t<T> v) { sum += static_cast<double>(v) * static_cast<double>(v); };
  if (reinterpret_cast<uintptr_t>(x) % 16 == 0) {
#pragma unroll 4
    for (int64_t i = own; i < n / P; i += stride) {
      compute_t<T> v[P];
      load_values<P>(v, x, i * P);
      for (int j = 0; j < P; ++j) add(v[j]);
    }
  } else {
    for (int64_t i = own; i < n / P; i += stride)
      for (int j = 0; j < P; ++j) add(get(x, i * P + j));
  }
  if (const int64_t i = n / P * P + own; i < n) add(get(x, i));
  sum = block_reduce(sum, Sum(), 0.0, shared_memory<double>());
  if (threadIdx.x == 0) store_one(partial, blockIdx.x, sum);
}

/// totals[total] += partial sums of a part, by one tree, for the parts of a run one after the other. One
/// block for each run, with a thread for each block that a part may have.
__global__ void add_partial(double* totals, const double* partial,
                            const __grid_constant__ SquareParts parts) {
  const int begin = parts.run[blockIdx.x], end = parts.run[blockIdx.x + 1];
  double total = 0;
  if (threadIdx.x == 0) total = load_one(totals, parts.part[begin].total);
  for (int part = begin; part < end; ++part) {
    const int i = parts.first[part] + static_cast<int>(threadIdx.x);
    total += block_reduce(i < parts.first[part + 1] ? load_one(partial, i) : 0.0, Sum(), 0.0,
                          shared_memory<double>());
  }
  if (threadIdx.x == 0) store_one(totals, parts.part[begin].total, total);
}

template <class T>
__global__ void fill_normal(T* out, int64_t n, uint64_t seed, uint64_t stream, int64_t first, double mean,
                            double std) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride())
    put(out, i,
        static_cast<compute_t<T>>(mean + std * normal_value(seed, stream, static_cast<uint64_t>(first + i))));
}

template <class T>
__global__ void fill_value(T* out, int64_t n, double value) {
  for (int64_t i = grid_thread(); i < n; i += grid_stride()) put(out, i, static_cast<compute_t<T>>(value));
}

template <class T, int N>
struct Elements {
  const T* x;
  int64_t cols;
  __device__ void operator()(compute_t<T>* v, int64_t row, int64_t col) const {
    load_values<N>(v, x, row * cols + col);
  }
};

}  // namespace
}  // namespace cuda

using namespace cuda;

void fill_zero_cuda(Stream& s, void* out, int64_t bytes) { fill_bytes(s, out, bytes); }

void cast_cuda(Stream& s, DType to, DType from, void* out, const void* in, int64_t n) {
  dispatch_float(from, [&]<class F>() {
    dispatch_float(to, [&]<class T>() {
      constexpr int N = std::max(kPackOf<T>, kPackOf<F>);  // 16 bytes of the narrower type
      const bool packs = aligned({out, in});
      launch(s, blocks_for(packs ? n / N : n, kThreads), kThreads, 0,
             packs ? cuda::cast<T, F, N> : cuda::cast<T, F, 1>, static_cast<T*>(out),
             static_cast<const F*>(in), n);
    });
  });
}

void add_to_cuda(Stream& s, DType t, void* y, const void* x, int64_t n) {
  dispatch_float(t, [&]<class T>() {
    with_alignment<T>({y, x}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, cuda::add<T, N>, static_cast<T*>(y),
             static_cast<const T*>(x), n);
    });
  });
}

void scale_by_cuda(Stream& s, DType t, void* y, int64_t n, double factor) {
  dispatch_float(t, [&]<class T>() {
    with_alignment<T>({y}, [&]<int N>() {
      launch(s, blocks_for(n / N, kThreads), kThreads, 0, cuda::scale_by<T, N>, static_cast<T*>(y),
             static_cast<compute_t<T>>(factor), n);
    });
  });
}

void add_bias_cuda(Stream& s, DType t, void* y, const void* bias, int64_t rows, int64_t cols) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, bias}, [&]<int N>() {
      const RowGrid g(rows, cols / N);
      launch(s, g.grid, g.threads, 0, cuda::add_vector<T, N>, static_cast<T*>(y), static_cast<const T*>(bias),
             cols / N);
    });
  });
}

void sum_rows_cuda(Stream& s, DType t, void* out, const void* x, int64_t rows, int64_t cols,
                   bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {out, x}, [&]<int N>() {
      column_sums<N>(s, static_cast<compute_t<T>*>(out), Elements<T, N>{static_cast<const T*>(x), cols}, rows,
                     cols, accumulate);
    });
  });
}

void sum_squares_cuda(Stream& s, DType t, double* totals, std::vector<SquaresPart> parts) {
  std::erase_if(parts, [](const SquaresPart& p) { return p.elements == 0; });
  double* partial = static_cast<double*>(scratch(s, kSquareParts * kSquareBlocks * 8));
  dispatch_float(t, [&]<class T>() {
    for (size_t next = 0; next < parts.size();) {
      SquareParts some{};
      int count = 0, runs = 0;
      for (; next < parts.size() && count < kSquareParts; ++next, ++count) {
        const SquaresPart& p = parts[next];
        if (count == 0 || p.total != some.part[count - 1].total) {
          // A total that appears again, after others, goes to the next launch: otherwise two blocks would add
          // to it.
          if (std::any_of(some.part, some.part + count, [&](auto& q) { return q.total == p.total; })) break;
          some.run[runs++] = count;
        }
        some.part[count] = p;
        some.first[count + 1] =
            some.first[count] +
            static_cast<int>(blocks_for(p.elements / kPackOf<T>, kThreads, kSquareBlocks).x);
      }
      some.run[runs] = count;
      launch(s, dim3(static_cast<unsigned>(some.first[count])), kThreads, kWarp * 8, cuda::sum_squares<T>,
             partial, some);
      launch(s, dim3(static_cast<unsigned>(runs)), static_cast<int>(kSquareBlocks), kWarp * 8,
             cuda::add_partial, totals, static_cast<const double*>(partial), some);
    }
  });
}

void fill_normal_cuda(Stream& s, DType t, void* out, int64_t n, uint64_t seed, uint64_t stream, int64_t first,
                      double mean, double std) {
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, cuda::fill_normal<T>, static_cast<T*>(out), n, seed,
           stream, first, mean, std);
  });
}

void fill_value_cuda(Stream& s, DType t, void* out, int64_t n, double value) {
  dispatch_float(t, [&]<class T>() {
    launch(s, blocks_for(n, kThreads), kThreads, 0, cuda::fill_value<T>, static_cast<T*>(out), n, value);
  });
}

}  // namespace ltrain
