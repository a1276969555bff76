// A checkpoint's slices, into tensors of any device.
#pragma once
#include <algorithm>
#include <memory>
#include <string>

#include "kernels/core/device.h"
#include "kernels/core/staging.h"
#include "runtime/checkpoint/reader.h"

namespace ltrain {

/// Into a device with memory of its own, by blocks through host memory.
class TensorReader {
 public:
  TensorReader(CheckpointReader& reader, Stream& stream) : reader_(reader), stream_(stream) {
    if (stream.device() != DeviceKind::cpu) block_ = host_memory(stream.device(), kBlock);
  }

  void read(const std::string& name, const Slice& slice, const Tensor& to) {
    if (!block_) return reader_.read(name, to.dtype, slice, to.data);
    const int64_t width = dtype_size(to.dtype), most = kBlock / width, n = slice.elements();
    for (int64_t done = 0; done < n; done += most) {
      const int64_t count = std::min(most, n - done);
      reader_.read(name, to.dtype, slice.range(done, done + count), block_.get());
      upload(stream_, to.flat(done, {count}), block_.get());
    }
  }

 private:
  static constexpr int64_t kBlock = 16 << 20;
  CheckpointReader& reader_;
  Stream& stream_;
  std::shared_ptr<void> block_;
};

}  // namespace ltrain
