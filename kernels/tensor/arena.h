// Memory of a rank: one arena with a deterministic allocator.
//
// The same allocator runs on `meta`, with no memory behind it and no limit, and on a device, with one
// allocation of exactly the size that the meta pass reached. Both see the same sequence of requests. Every
// tensor therefore gets the same offset in both, and the peak of the meta pass is the size on the device.
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tensor/tensor.h"

namespace ltrain {

enum class MemoryKind : uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  temporaries,
  communication,
  fp8_weights  ///< quantized weights for FP8 matmuls, beside the original weights
};
inline constexpr int kMemoryKindCount = 7;
std::string_view memory_kind_name(MemoryKind k);

/// Peak use of an arena, and the live bytes of each kind at the time of the peak.
struct MemoryUse {
  int64_t arena_bytes = 0;                          ///< highest end of any tensor: the size of the allocation
  int64_t live_bytes = 0;                           ///< sum of live tensors at the peak
  std::array<int64_t, kMemoryKindCount> by_kind{};  ///< shares of live_bytes
  /// Peak of each kind. The kinds may peak at different times.
  std::array<int64_t, kMemoryKindCount> most_by_kind{};
};

class Memory {
 public:
  static constexpr int64_t kAlignment = 64;

  virtual ~Memory() = default;
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Returns a tensor of undefined contents. Throws, with a table of live tensors, if the arena cannot hold
  /// it.
  Tensor allocate(MemoryKind kind, std::string_view name, DType dtype, Shape shape);
  /// Frees the memory and clears `t`. `t` must be a tensor that allocate() returned.
  void release(Tensor& t);

  const MemoryUse& peak() const { return peak_; }
  int64_t live_bytes() const { return live_bytes_; }

 protected:
  virtual Tensor make(int64_t offset, MemoryKind kind, std::string_view name, DType dtype, Shape shape) = 0;
  virtual int64_t offset_of(const Tensor& t) const = 0;
  /// allocate() and release() by offset, without a tensor. take() returns the offset, or -1 if the arena
  /// cannot hold the bytes. `name` is interned.
  static int64_t aligned(int64_t bytes);
  int64_t take(MemoryKind kind, std::string_view name, int64_t aligned_bytes);
  void deallocate(int64_t offset);
  /// True if requests cannot raise a peak. They allocate `bytes` in total and release them again; at most
  /// `most_live` bytes are live at a time. The largest gap shrinks by no more than what was allocated.
  bool below_peak(int64_t bytes, int64_t most_live) const;
  int64_t capacity_ = INT64_MAX;

 private:
  struct Block {
    int64_t bytes;
    MemoryKind kind;
    std::string_view name;  ///< interned
  };
  [[noreturn]] void exhausted(std::string_view name, DType dtype, const Shape& shape, int64_t bytes) const;
  void note_peak();
  /// Live blocks by offset. Open addressing, since a plan allocates many million times.
  class Live {
   public:
    void insert(int64_t offset, const Block& block);
    bool take(int64_t offset, Block& block);  ///< removes the block; false if there is none
    template <class F>
    void each(const F& f) const {
      for (const Slot& s : slots_)
        if (s.offset >= 0) f(s.block);
    }

   private:
    struct Slot {
      int64_t offset = -1;
      Block block{};
    };
    size_t home(int64_t offset) const;
    size_t next(size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
    std::vector<Slot> slots_;  // size is a power of two, at most half used
    size_t used_ = 0;
  };
  struct Gap {  // trivially copyable, unlike std::pair
    int64_t first, second;
    auto operator<=>(const Gap&) const = default;
  };
  using Gaps = std::vector<Gap>;  // sorted; a few hundred at most
  void add_size(Gap gap);         // inserts into free_by_size_
  void erase_size(Gap gap);
  void replace_size(Gaps::iterator old, Gap gap);  // moves each entry between the two once

  Live live_;
  Gaps free_;          // (offset, bytes), below top_, never adjacent
  Gaps free_by_size_;  // same gaps as (bytes, offset)
  int64_t top_ = 0;    // everything above is free
  int64_t live_bytes_ = 0;
  std::array<int64_t, kMemoryKindCount> kind_bytes_{};
  MemoryUse peak_;
};

/// Arena on a device: one allocation of `bytes`. It may be host memory for copies to a GPU.
class Arena : public Memory {
 public:
  Arena(DeviceKind device, int64_t bytes);
  int64_t bytes() const { return capacity_; }
  /// Host memory for copies to and from `device`. Its tensors are CPU tensors.
  static std::unique_ptr<Arena> staging(DeviceKind device, int64_t bytes);

 private:
  Arena(DeviceKind device, int64_t bytes, std::shared_ptr<void> memory);
  Tensor make(int64_t offset, MemoryKind kind, std::string_view name, DType dtype, Shape shape) override;
  int64_t offset_of(const Tensor& t) const override;
  DeviceKind device_;
  std::shared_ptr<void> memory_;
};

struct CpuArena final : Arena {
  explicit CpuArena(int64_t bytes) : Arena(DeviceKind::cpu, bytes) {}
};

}  // namespace ltrain
