// Shared code of the kernel tests: guarded buffers, random values, both instruction sets, 1 and 2 threads.
#pragma once
#include <omp.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/cpu_isa.h"
#include "kernels/tensor/dtype.h"
#include "kernels/tensor/rng.h"
#include "kernels/tensor/tensor.h"

namespace ltrain::test {

/// An array between two guards: a write outside of it is seen by intact().
template <class T>
class Guarded {
 public:
  explicit Guarded(int64_t n) : n_(n), bytes_(2 * kGuard + n * sizeof(T), kSentinel) {}
  T* data() { return reinterpret_cast<T*>(bytes_.data() + kGuard); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + kGuard); }
  int64_t size() const { return n_; }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  bool intact() const {
    for (size_t i = 0; i < kGuard; ++i)
      if (bytes_[i] != kSentinel || bytes_[bytes_.size() - 1 - i] != kSentinel) return false;
    return true;
  }
  /// The bits of the contents.
  std::string bits() const { return {reinterpret_cast<const char*>(data()), n_ * sizeof(T)}; }
  /// True when no element still has the sentinel's bits: everything was written.
  bool all_written() const {
    T untouched;
    std::memset(static_cast<void*>(&untouched), kSentinel, sizeof(T));
    for (int64_t i = 0; i < n_; ++i)
      if (std::memcmp(data() + i, &untouched, sizeof(T)) == 0) return false;
    return true;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kSentinel = 0xd5;
  int64_t n_;
  std::vector<unsigned char> bytes_;
};

inline double as_double(double v) { return v; }
inline double as_double(float v) { return v; }
inline double as_double(bf16 v) { return static_cast<float>(v); }
inline double as_double(f16 v) { return static_cast<float>(v); }
inline double as_double(int32_t v) { return v; }
inline double as_double(int64_t v) { return static_cast<double>(v); }

/// Uniform in (-size, size), a function of (stream, i).
inline double random_value(uint64_t stream, int64_t i, double size = 1) {
  return size * (2.0 * (philox(91, stream, static_cast<uint64_t>(i)).v[0] + 0.5) / 4294967296.0 - 1.0);
}

template <class T>
void fill_random(Guarded<T>& to, uint64_t stream, double size = 1) {
  for (int64_t i = 0; i < to.size(); ++i) to[i] = T(static_cast<compute_t<T>>(random_value(stream, i, size)));
}
template <class T>
Guarded<T> random_array(int64_t n, uint64_t stream, double size = 1) {
  Guarded<T> a(n);
  fill_random(a, stream, size);
  return a;
}
template <class T>
std::vector<double> doubles(const Guarded<T>& a) {
  std::vector<double> out(a.size());
  for (int64_t i = 0; i < a.size(); ++i) out[i] = as_double(a[i]);
  return out;
}

/// Largest |got - want| / (|want| + mean |want|): relative, without blowing up at zeros.
template <class T>
double worst_error(const Guarded<T>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == static_cast<int64_t>(want.size()));
  double mean = 1e-30, worst = 0;
  for (double w : want) mean += std::abs(w) / static_cast<double>(want.size());
  for (int64_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(as_double(got[i]) - want[i]) / (std::abs(want[i]) + mean);
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  return worst;
}

/// Error bound of a kernel that computes in compute_t<T> and rounds once to T.
template <class T>
constexpr double tolerance() {
  if constexpr (std::is_same_v<T, double>) return 1e-12;
  if constexpr (std::is_same_v<T, float>) return 2e-5;
  return 4e-3;  // half a unit in the last of 8 bits is 2^-9 = 0.002
}

/// BOTH_ISAS(f): a CPU kernel in every instruction set that this machine runs and this build has.
#if defined(__x86_64__) && !defined(LTRAIN_ONE_ISA)
template <class F>
std::vector<std::pair<const char*, F*>> isas_of(F* narrow, F* wide) {
  std::vector<std::pair<const char*, F*>> out{{"avx2", narrow}};
  if (std::string(cpu_isa_name()) == "avx512") out.push_back({"avx512", wide});
  return out;
}
#define BOTH_ISAS(f) ::ltrain::test::isas_of(&::ltrain::avx2::f, &::ltrain::avx512::f)
#else
#define BOTH_ISAS(f)                                                         \
  (std::vector<std::pair<const char*, decltype(&::ltrain::LT_ONLY_ISA::f)>>{ \
      {cpu_isa_name(), &::ltrain::LT_ONLY_ISA::f}})
#endif

template <class F>
void with_threads(int n, F&& f) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(n);
  f();
  omp_set_num_threads(before);
}

/// f.operator()<T>() for f32, f64, bf16 and f16.
template <class F>
void each_float(F&& f) {
  {
    INFO("f32");
    f.template operator()<float>();
  }
  {
    INFO("f64");
    f.template operator()<double>();
  }
  {
    INFO("bf16");
    f.template operator()<bf16>();
  }
  {
    INFO("f16");
    f.template operator()<f16>();
  }
}

/// A CPU tensor over a guarded array.
template <class T>
Tensor tensor_of(Guarded<T>& a, Shape shape) {
  Tensor t;
  t.data = a.data();
  t.dtype = dtype_of<T>::value;
  t.shape = shape;
  REQUIRE(shape.elements() == a.size());
  return t;
}

}  // namespace ltrain::test
