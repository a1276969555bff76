// Reading of slices of a checkpoint or of a weights folder into tensors on any device.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "kernels/storage/offload.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/staging.h"
#include "runtime/checkpoint/piece_reader.h"

namespace ltrain {

/// Reads tensors. For a device with its own memory it copies in blocks through host memory.
class TensorReader {
 public:
  /// `touched`: called after every block.
  TensorReader(PieceReader& reader, Stream& stream, std::function<void()> touched = {})
      : reader_(reader), stream_(stream), touched_(std::move(touched)) {
    if (stream.device() != DeviceKind::cpu) block_ = host_memory(stream.device(), kBlock);
  }

  void read(const std::string& name, const Slice& slice, const Tensor& to) {
    if (!block_ && !touched_) return reader_.read(name, to.dtype, slice, to.data);
    const int64_t width = dtype_size(to.dtype), most = kBlock / width, n = slice.elements();
    for (int64_t done = 0; done < n; done += most) {
      const int64_t count = std::min(most, n - done);
      const Tensor part = to.flat(done, {count});
      reader_.read(name, to.dtype, slice.range(done, done + count), block_ ? block_.get() : part.data);
      if (block_) upload(stream_, part, block_.get());
      if (touched_) touched_();
    }
  }

 private:
  static constexpr int64_t kBlock = kOffloadTouch;
  PieceReader& reader_;
  Stream& stream_;
  std::function<void()> touched_;
  std::shared_ptr<void> block_;
};

}  // namespace ltrain
