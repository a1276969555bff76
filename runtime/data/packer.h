// Packing of whole documents into samples of a fixed length.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace ltrain::data {

/// Best-fit decreasing: documents of a window, the longest first, each go to the sample with the least room
/// that is enough. Samples never share a document. The result is a function of the documents and their order.
class Packer {
 public:
  /// Document of a sample: its number in the window, from 0.
  using Emit = std::function<void(const std::vector<int64_t>& documents)>;

  /// `length`: tokens of a sample. `window`: documents that are packed together.
  explicit Packer(int64_t length, int64_t window = 8192) : length_(length), window_(window) {}

  /// Adds a document of 1 to `length` tokens. Returns whether the window is full.
  bool add(int64_t tokens);
  int64_t documents() const { return static_cast<int64_t>(sizes_.size()); }

  /// Packs the window, calls `emit` for each sample, and begins the next window.
  void flush(const Emit& emit);

 private:
  int64_t length_, window_;
  std::vector<int64_t> sizes_;
};

}  // namespace ltrain::data
