// Reading of slices of a checkpoint or of a weights folder into tensors on any device.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/matmul/nf4.h"
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

  /// Fills the weights of a piece. Those in NF4 are rounded to `dtype`, the type of the matmuls, first.
  void read_weights(const std::string& name, const Slice& slice, const Tensor& to, const Nf4Matrix& nf4,
                    DType dtype) {
    if (!nf4.defined()) return read(name, slice, to);
    constexpr int64_t most = kBlock / static_cast<int64_t>(sizeof(float));
    values_.resize(static_cast<size_t>(std::min(most, slice.elements())));
    for (int64_t done = 0; done < slice.elements(); done += most) {
      const int64_t count = std::min(most, slice.elements() - done);
      reader_.read(name, DType::f32, slice.range(done, done + count), values_.data());
      const Nf4Matrix part{nf4.codes.flat(done / kNf4Pair, {count / kNf4Pair}),
                           nf4.absmax.flat(done / kNf4Block, {count / kNf4Block})};
      if (!nf4_store(stream_, part, dtype, values_.data()))
        fail(ExitCode::data,
             "{}: {} has values that are not finite in {}, and lora.base: nf4 cannot hold them",
             reader_.path(), name, dtype_name(dtype));
    }
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
  std::vector<float> values_;  // weights of NF4
};

}  // namespace ltrain
