// One op on the CPU and on the CUDA device, from the same inputs: what both write must agree.
#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/tensor/stream_cuda.h"
#include "tests/kernels/op_support.h"
#include "tests/support/outcome.h"

namespace ltrain::test {

/// False, and the test counts as skipped, where there is no GPU.
inline bool have_cuda() {
  const std::string why = cuda::no_device_reason();
  if (why.empty()) return true;
  skip_test(why);
  return false;
}

/// True where a test may start several ranks in one process: a GPU has one rank a process.
#ifdef LTRAIN_CUDA_EMULATED
inline constexpr bool kSeveralRanks = true;
#else
inline constexpr bool kSeveralRanks = false;
#endif

class Twin {
 public:
  using Id = size_t;
  using At = std::function<Tensor(Id)>;

  /// `narrowest`: what the op computes in; no buffer is judged by a tighter bound than that type's.
  explicit Twin(DType narrowest)
      : narrowest_(narrowest), cpu_(make_inline_stream("cpu")), cuda_(cuda::make_cuda_stream("cuda")) {}

  /// Uniform in (-size, size).
  Id random(DType t, Shape shape, double size = 1) {
    const Id id = blank(t, shape);
    for (int64_t i = 0; i < shape.elements(); ++i) set(id, i, random_value(id + 1, i, size));
    return id;
  }
  /// Not to be read before it is written: NaN, or a number that no test uses.
  Id blank(DType t, Shape shape) {
    Buffer b{t, shape, std::vector<char>(static_cast<size_t>(shape.elements() * dtype_size(t)))};
    buffers_.push_back(std::move(b));
    const Id id = buffers_.size() - 1;
    for (int64_t i = 0; i < shape.elements(); ++i)
      set(id, i, t == DType::i32 || t == DType::i64 ? -7777 : std::nan(""));
    return id;
  }
  template <class F>
  Id of(DType t, Shape shape, F value) {
    const Id id = blank(t, shape);
    for (int64_t i = 0; i < shape.elements(); ++i) set(id, i, static_cast<double>(value(i)));
    return id;
  }

  /// Runs `op` on both devices and compares every buffer: |a - b| <= tolerance of its dtype * the largest of
  /// the buffer. NaN must meet NaN.
  void check(const std::function<void(Stream&, const At&)>& op, double loosen = 1) {
    std::vector<std::vector<char>> host, device;
    for (const Buffer& b : buffers_) host.push_back(b.bytes);
    op(*cpu_, [&](Id id) { return tensor(id, host[id].data(), DeviceKind::cpu); });
    std::vector<std::shared_ptr<void>> memory;
    for (const Buffer& b : buffers_) {
      memory.push_back(cuda::device_memory(static_cast<int64_t>(b.bytes.size())));
      cuda_->copy(memory.back().get(), b.bytes.data(), static_cast<int64_t>(b.bytes.size()));
    }
    op(*cuda_, [&](Id id) { return tensor(id, memory[id].get(), DeviceKind::cuda); });
    for (size_t i = 0; i < buffers_.size(); ++i) {
      device.emplace_back(buffers_[i].bytes.size());
      cuda_->copy(device[i].data(), memory[i].get(), static_cast<int64_t>(device[i].size()));
    }
    cuda_->synchronize();
    for (Id id = 0; id < buffers_.size(); ++id) compare(id, host[id], device[id], loosen);
  }

 private:
  struct Buffer {
    DType dtype;
    Shape shape;
    std::vector<char> bytes;
  };

  Tensor tensor(Id id, void* data, DeviceKind device) const {
    Tensor t;
    t.data = data;
    t.dtype = buffers_[id].dtype;
    t.device = device;
    t.shape = buffers_[id].shape;
    return t;
  }
  void set(Id id, int64_t i, double v) {
    char* at = buffers_[id].bytes.data() + i * dtype_size(buffers_[id].dtype);
    const auto write = [&](auto x) { std::memcpy(at, &x, sizeof x); };
    switch (buffers_[id].dtype) {
      case DType::f32:
        return write(static_cast<float>(v));
      case DType::f64:
        return write(v);
      case DType::bf16:
        return write(bf16(static_cast<float>(v)));
      case DType::f16:
        return write(f16(static_cast<float>(v)));
      case DType::i32:
        return write(static_cast<int32_t>(v));
      case DType::u8:
        return write(static_cast<uint8_t>(v));
      default:
        return write(static_cast<int64_t>(v));
    }
  }
  double value(Id id, const std::vector<char>& bytes, int64_t i) const {
    const char* at = bytes.data() + i * dtype_size(buffers_[id].dtype);
    const auto read = [&](auto x) {
      std::memcpy(static_cast<void*>(&x), at, sizeof x);
      return as_double(x);
    };
    switch (buffers_[id].dtype) {
      case DType::f32:
        return read(0.0f);
      case DType::f64:
        return read(0.0);
      case DType::bf16:
        return read(bf16());
      case DType::f16:
        return read(f16());
      case DType::i32:
        return read(int32_t{});
      case DType::u8:
        return read(uint8_t{});
      default:
        return read(int64_t{});
    }
  }
  void compare(Id id, const std::vector<char>& a, const std::vector<char>& b, double loosen) const {
    const auto bound = [](DType t) {
      return t == DType::f64    ? 1e-12
             : t == DType::bf16 ? 1e-2
             : t == DType::f16  ? 2e-3
             : t == DType::f32  ? 2e-5
                                : 0;
    };
    const double own = bound(buffers_[id].dtype);
    const double part = own > 0 ? std::max(own, bound(narrowest_)) : 0;  // integers are equal
    const int64_t n = buffers_[id].shape.elements();
    double largest = 0;
    for (int64_t i = 0; i < n; ++i)
      if (const double v = std::abs(value(id, a, i)); v > largest && std::isfinite(v)) largest = v;
    // Compares many values, and names the first that is not near.
    const double most = part * loosen * largest;
    for (int64_t i = 0; i < n; ++i) {
      const double x = value(id, a, i), y = value(id, b, i);
      if (x == y || std::abs(x - y) <= most || (std::isnan(x) && std::isnan(y))) continue;
      FAIL("buffer " << id << ", element " << i << ": " << x << " on the CPU, " << y << " on CUDA, more than "
                     << most << " apart");
    }
    SUCCEED();
  }

  DType narrowest_;
  std::unique_ptr<Stream> cpu_, cuda_;
  std::vector<Buffer> buffers_;
};

inline const DType kFloats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
inline DType wide(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace ltrain::test
