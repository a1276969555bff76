#include "kernels/optimizer/onebit/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

constexpr int64_t kMost = code_block(Code::sign);
constexpr int kLanes = 8;  // partial sums, the same number on every machine, so that their order is fixed

template <class T>
T scale_of(const uint8_t* block) {
  T scale;
  std::memcpy(&scale, block + kCodes, sizeof scale);
  return scale;
}

/// c becomes the rounding error of its code.
template <class T>
void encode_signs(uint8_t* to, T* __restrict c, const T* where) {
  constexpr int64_t n = code_block(Code::sign);
  double squares[kLanes] = {}, sum = 0;
  int64_t count = n;
  for (int64_t i = 0; i < n; i += kLanes)
    for (int k = 0; k < kLanes; ++k) squares[k] += static_cast<double>(c[i + k]) * c[i + k];
  for (double x : squares) sum += x;
  if (where) count -= std::count(where, where + n, T(0));
  const T scale = count > 0 ? static_cast<T>(std::sqrt(sum / static_cast<double>(count))) : T(0);
  for (int64_t byte = 0; byte < n / 8; ++byte) {
    unsigned bits = 0;
    for (int k = 0; k < 8; ++k) bits |= static_cast<unsigned>(c[byte * 8 + k] >= T(0)) << k;
    to[byte] = static_cast<uint8_t>(bits);
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) c[i] -= c[i] >= T(0) ? scale : -scale;
  std::memcpy(to + kCodes, &scale, sizeof scale);
}

template <class T>
void encode_bytes(uint8_t* to, T* __restrict c) {
  constexpr int64_t n = code_block(Code::int8);
  T most = 0, bad = 0;
#pragma omp simd reduction(max : most) reduction(+ : bad)
  for (int64_t i = 0; i < n; ++i) {
    const T a = std::abs(c[i]);
    most = a > most ? a : most;
    bad += c[i] * T(0);
  }
  T scale = most > T(1e-30) ? most / T(127) : T(0);
  const T by = scale > T(0) ? T(1) / scale : T(0);
  for (int64_t i = 0; i < n; ++i) {
    const T x = c[i] * by;
    const T q = !(x < T(127)) ? T(127) : !(x > T(-127)) ? T(-127) : std::nearbyint(x);
    to[i] = static_cast<uint8_t>(static_cast<int8_t>(q));
    c[i] -= q * scale;
  }
  if (!(bad == T(0))) scale = bad;  // NaN
  std::memcpy(to + kCodes, &scale, sizeof scale);
}

template <class T>
void encode(Code code, uint8_t* to, T* c, T* error, const T* where) {
  const int64_t n = code_block(code);
  if (where)
    for (int64_t i = 0; i < n; ++i) c[i] = where[i] == T(0) ? T(0) : c[i];
  if (code == Code::sign)
    encode_signs(to, c, where);
  else
    encode_bytes(to, c);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) error[i] = c[i];
  if (where)
    for (int64_t i = 0; i < n; ++i) error[i] = where[i] == T(0) ? T(0) : error[i];
}

/// sum += decoded block; sum = decoded block for the first.
template <class T>
void decode(Code code, T* __restrict sum, const uint8_t* block, bool first) {
  const T scale = scale_of<T>(block);
  const int64_t n = code_block(code);
  if (first) std::fill(sum, sum + n, T(0));
  if (code == Code::sign) {
    for (int64_t byte = 0; byte < n / 8; ++byte)
      for (int k = 0; k < 8; ++k) sum[byte * 8 + k] += (block[byte] >> k) & 1 ? scale : -scale;
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<T>(static_cast<int8_t>(block[i])) * scale;
  }
}

/// Calls f(index of a block, its first element, its first byte).
template <class T, class F>
void each_block(Code code, int64_t n, F f) {
  const int64_t size = code_block(code);
  parallel_for(n / size, 8, [=](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) f(b * size, b * (kCodes + static_cast<int64_t>(sizeof(T))));
  });
}

template <class T>
void run_compress(Code code, uint8_t* coded, const T* values, T* error, const T* where, int64_t n) {
  each_block<T>(code, n, [=](int64_t at, int64_t byte) {
    alignas(64) T c[kMost];
    for (int64_t i = 0; i < code_block(code); ++i) c[i] = values[at + i] + error[at + i];
    encode(code, coded + byte, c, error + at, where ? where + at : nullptr);
  });
}

template <class T>
void run_sum(Code code, uint8_t* out, const uint8_t* coded, int ranks, T factor, T* error, const T* where,
             int64_t n) {
  const int64_t part = coded_bytes(code, dtype_of<T>::value, n);
  each_block<T>(code, n, [=](int64_t at, int64_t byte) {
    alignas(64) T c[kMost];
    for (int r = 0; r < ranks; ++r) decode(code, c, coded + r * part + byte, r == 0);
    for (int64_t i = 0; i < code_block(code); ++i) c[i] = factor * c[i] + error[at + i];
    encode(code, out + byte, c, error + at, where ? where + at : nullptr);
  });
}

template <class T>
void run_decompress(Code code, T* values, const uint8_t* coded, const T* where, int64_t n) {
  each_block<T>(code, n, [=](int64_t at, int64_t byte) {
    decode(code, values + at, coded + byte, true);
    if (!where) return;
    for (int64_t i = at; i < at + code_block(code); ++i) values[i] = where[i] == T(0) ? T(0) : values[i];
  });
}

}  // namespace

void compress_cpu(DType t, Code code, void* coded, const void* values, void* error, const void* where,
                  int64_t n) {
  const auto run = [&]<class T>() {
    run_compress(code, static_cast<uint8_t*>(coded), static_cast<const T*>(values), static_cast<T*>(error),
                 static_cast<const T*>(where), n);
  };
  dispatch_wide(t, run);
}

void compress_sum_cpu(DType t, Code code, void* out, const void* coded, int ranks, double factor, void* error,
                      const void* where, int64_t n) {
  const auto run = [&]<class T>() {
    run_sum(code, static_cast<uint8_t*>(out), static_cast<const uint8_t*>(coded), ranks, T(factor),
            static_cast<T*>(error), static_cast<const T*>(where), n);
  };
  dispatch_wide(t, run);
}

void decompress_cpu(DType t, Code code, void* values, const void* coded, const void* where, int64_t n) {
  const auto run = [&]<class T>() {
    run_decompress(code, static_cast<T*>(values), static_cast<const uint8_t*>(coded),
                   static_cast<const T*>(where), n);
  };
  dispatch_wide(t, run);
}

}  // namespace ltrain::LT_ISA
