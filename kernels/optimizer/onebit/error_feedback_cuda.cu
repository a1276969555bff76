#include "kernels/cuda/kernel_cuda.h"
#include "kernels/optimizer/onebit/error_feedback.h"

namespace ltrain {
namespace cuda {
namespace {

// one thread block for each coded block, one thread for each byte of codes
constexpr int kCodeThreads = static_cast<int>(kCodes);

template <Code code>
constexpr int kEach = static_cast<int>(code_block(code) / kCodes);  // elements in a byte

template <class T>
inline __device__ const T* scale_at(const uint8_t* block) {
  return reinterpret_cast<const T*>(block + kCodes);
}

/// Encodes the elements of this thread; c becomes the rounding error.
template <class T, Code code>
__device__ void encode(uint8_t* to, T* c, const bool* in) {
  constexpr int each = kEach<code>;
  T scale;
  if constexpr (code == Code::sign) {
    double squares = 0, count = 0;
    unsigned bits = 0;
    for (int k = 0; k < each; ++k) {
      squares += static_cast<double>(c[k]) * c[k];
      count += in[k];
      bits |= static_cast<unsigned>(c[k] >= T(0)) << k;
    }
    squares = block_reduce(squares, Sum(), 0.0, shared_memory<double>());
    count = block_reduce(count, Sum(), 0.0, shared_memory<double>());
    scale = count > 0 ? static_cast<T>(sqrt(squares / count)) : T(0);
    to[threadIdx.x] = static_cast<uint8_t>(bits);
    for (int k = 0; k < each; ++k) c[k] -= c[k] >= T(0) ? scale : -scale;
  } else {
    const T magnitude = c[0] < T(0) ? -c[0] : c[0];
    const T most = block_reduce(magnitude, Max(), T(0), shared_memory<T>());
    const T bad = block_reduce(c[0] * T(0), Sum(), T(0), shared_memory<T>());
    scale = most > T(1e-30) ? most / T(127) : T(0);
    const T x = c[0] * (scale > T(0) ? T(1) / scale : T(0));
    const T q = !(x < T(127)) ? T(127) : !(x > T(-127)) ? T(-127) : T(nearbyint(x));
    to[threadIdx.x] = static_cast<uint8_t>(static_cast<int8_t>(q));
    c[0] -= q * scale;
    if (!(bad == T(0))) scale = bad;
  }
  if (threadIdx.x == 0) *reinterpret_cast<T*>(to + kCodes) = scale;
}

template <class T, Code code>
inline __device__ T decode(const uint8_t* block, int k) {
  const T scale = *scale_at<T>(block);
  if constexpr (code == Code::sign)
    return (block[threadIdx.x] >> k) & 1 ? scale : -scale;
  else
    return static_cast<T>(static_cast<int8_t>(block[threadIdx.x])) * scale;
}

/// out = factor * sum of `ranks` coded parts (or the values) + error, rounded.
template <class T, Code code>
__global__ void compress_kernel(uint8_t* out, const T* values, const uint8_t* coded, int ranks, T factor,
                                T* error, const T* where, int64_t blocks) {
  constexpr int each = kEach<code>;
  constexpr int64_t bytes = kCodes + static_cast<int64_t>(sizeof(T));
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t at = (b * kCodes + threadIdx.x) * each;
    T c[each];
    bool in[each];
    for (int k = 0; k < each; ++k) {
      T v = 0;
      if (values) {
        v = values[at + k];
      } else {
        for (int r = 0; r < ranks; ++r) v += decode<T, code>(coded + (r * blocks + b) * bytes, k);
        v *= factor;
      }
      in[k] = !where || where[at + k] != T(0);
      c[k] = in[k] ? v + error[at + k] : T(0);
    }
    encode<T, code>(out + b * bytes, c, in);
    for (int k = 0; k < each; ++k) error[at + k] = in[k] ? c[k] : T(0);
  }
}

template <class T, Code code>
__global__ void decompress_kernel(T* values, const uint8_t* coded, const T* where, int64_t blocks) {
  constexpr int each = kEach<code>;
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t at = (b * kCodes + threadIdx.x) * each;
    for (int k = 0; k < each; ++k) {
      const T v = decode<T, code>(coded + b * (kCodes + static_cast<int64_t>(sizeof(T))), k);
      values[at + k] = where && where[at + k] == T(0) ? T(0) : v;
    }
  }
}

/// Calls f.operator()<T, code>().
template <class F>
void dispatch(DType t, Code code, F f) {
  dispatch_wide(t, [&]<class A>() {
    code == Code::sign ? f.template operator()<A, Code::sign>() : f.template operator()<A, Code::int8>();
  });
}

dim3 block_grid(int64_t blocks) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, 1 << 16)));
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void compress_cuda(Stream& s, DType t, Code code, void* coded, const void* values, void* error,
                   const void* where, int64_t n) {
  const int64_t blocks = n / code_block(code);
  dispatch(t, code, [&]<class T, Code c>() {
    launch(s, block_grid(blocks), kCodeThreads, kWarp * 8, compress_kernel<T, c>,
           static_cast<uint8_t*>(coded), static_cast<const T*>(values), static_cast<const uint8_t*>(nullptr),
           0, T(1), static_cast<T*>(error), static_cast<const T*>(where), blocks);
  });
}

void compress_sum_cuda(Stream& s, DType t, Code code, void* out, const void* coded, int ranks, double factor,
                       void* error, const void* where, int64_t n) {
  const int64_t blocks = n / code_block(code);
  dispatch(t, code, [&]<class T, Code c>() {
    launch(s, block_grid(blocks), kCodeThreads, kWarp * 8, compress_kernel<T, c>, static_cast<uint8_t*>(out),
           static_cast<const T*>(nullptr), static_cast<const uint8_t*>(coded), ranks, T(factor),
           static_cast<T*>(error), static_cast<const T*>(where), blocks);
  });
}

void decompress_cuda(Stream& s, DType t, Code code, void* values, const void* coded, const void* where,
                     int64_t n) {
  const int64_t blocks = n / code_block(code);
  dispatch(t, code, [&]<class T, Code c>() {
    launch(s, block_grid(blocks), kCodeThreads, 0, decompress_kernel<T, c>, static_cast<T*>(values),
           static_cast<const uint8_t*>(coded), static_cast<const T*>(where), blocks);
  });
}

}  // namespace ltrain
