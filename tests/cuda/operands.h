// Operands of an op on the emulated device and on meta, for tests that compare the bytes of both.
#pragma once
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/kernel_cuda.h"
#include "kernels/meta/meta_memory.h"
#include "tests/kernels/op_support.h"

namespace ltrain::test {

inline constexpr DType kBf16 = DType::bf16, kF32 = DType::f32, kF64 = DType::f64, kI32 = DType::i32,
                       kI64 = DType::i64, kU8 = DType::u8;

/// Device of an op's operands: the emulated device, or meta.
class Operands {
 public:
  virtual ~Operands() = default;
  /// Small numbers; of integers `value(i)`.
  virtual Tensor make(DType t, Shape shape, const std::function<int64_t(int64_t)>& value = {}) = 0;
};

class OnDevice final : public Operands {
 public:
  Tensor make(DType t, Shape shape, const std::function<int64_t(int64_t)>& value = {}) override {
    const int64_t n = shape.elements();
    std::vector<char> bytes(static_cast<size_t>(n * dtype_size(t)));
    for (int64_t i = 0; i < n; ++i) {
      const auto put = [&](auto v) {
        std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof v), &v, sizeof v);
      };
      const float v = static_cast<float>(random_value(memory_.size(), i, 1));
      const int64_t whole = value ? value(i) : 0;
      if (t == DType::i32) put(static_cast<int32_t>(whole));
      if (t == DType::i64) put(whole);
      if (dtype_size(t) == 1) put(static_cast<uint8_t>(whole));
      if (t == DType::f32) put(v);
      if (t == DType::bf16) put(bf16(v));
      if (t == DType::f64) put(static_cast<double>(v));
    }
    memory_.push_back(cuda::device_memory(static_cast<int64_t>(bytes.size())));
    stream_->copy(memory_.back().get(), bytes.data(), static_cast<int64_t>(bytes.size()));
    stream_->synchronize();
    Tensor out;
    out.data = memory_.back().get(), out.dtype = t, out.shape = shape, out.device = DeviceKind::cuda;
    return out;
  }
  /// Until all that `op` launches has run.
  void run(const std::function<void(Stream&)>& op) {
    op(*stream_);
    stream_->synchronize();
  }
  Stream& stream() { return *stream_; }
  const std::vector<std::shared_ptr<void>>& memory() const { return memory_; }
  template <class T>
  std::vector<T> values(Tensor t) {
    std::vector<T> out(static_cast<size_t>(t.elements()));
    stream_->copy(out.data(), t.data, t.bytes());
    stream_->synchronize();
    return out;
  }

 private:
  std::unique_ptr<Stream> stream_ = cuda::make_cuda_stream("cuda");
  std::vector<std::shared_ptr<void>> memory_;
};

class OnMeta final : public Operands {
 public:
  Tensor make(DType t, Shape shape, const std::function<int64_t(int64_t)>& = {}) override {
    Tensor out = memory_.allocate(MemoryKind::activations, "operand", t, shape);
    out.record->written = true;
    return out;
  }
  int64_t bytes(const std::function<void(Stream&)>& op) {
    trace_.clear_entries();
    op(*stream_);
    double sum = 0;
    for (const TraceEntry& e : trace_.entries()) sum += e.bytes;
    return static_cast<int64_t>(sum);
  }

 private:
  MetaTrace trace_;
  std::unique_ptr<Stream> stream_ = make_meta_stream("compute", trace_);
  MetaMemory memory_{trace_};
};

/// An op whose operands are made once.
using Made = std::function<std::function<void(Stream&)>(Operands&)>;

}  // namespace ltrain::test
