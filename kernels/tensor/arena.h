// Memory of a rank: one arena, carved by a deterministic allocator.
//
// The same allocator runs on `meta` (no memory behind it, unlimited) and on a device (one allocation of
// exactly the size that the meta pass reached). Both see the same sequence of requests, so they place every
// tensor at the same offset, and the peak of one is the size of the other.
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
  fp8_weights  ///< rounded for products, beside those that they were rounded from
};
inline constexpr int kMemoryKindCount = 7;
std::string_view memory_kind_name(MemoryKind k);

/// What an arena reached, by kind, at the time of its largest extent.
struct MemoryUse {
  int64_t arena_bytes = 0;  ///< highest end of any tensor: what one allocation must hold
  int64_t live_bytes = 0;   ///< sum of live tensors at that moment
  std::array<int64_t, kMemoryKindCount> by_kind{};  ///< of live_bytes
  /// The most of each kind that was live at any moment: not all at the same one.
  std::array<int64_t, kMemoryKindCount> most_by_kind{};
};

class Memory {
 public:
  static constexpr int64_t kAlignment = 64;

  virtual ~Memory() = default;
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// A tensor of undefined contents. Fails, with the table of what is live, if the arena cannot hold it.
  Tensor allocate(MemoryKind kind, std::string_view name, DType dtype, Shape shape);
  /// Gives the memory back and clears `t`. Only tensors as allocate() returned them.
  void release(Tensor& t);

  const MemoryUse& peak() const { return peak_; }
  int64_t live_bytes() const { return live_bytes_; }

 protected:
  virtual Tensor make(int64_t offset, std::string_view name, DType dtype, Shape shape) = 0;
  virtual int64_t offset_of(const Tensor& t) const = 0;
  /// What allocate() and release() do for a tensor of so many bytes, without the tensor: its offset, and the
  /// way back. `name` is interned. -1: the arena cannot hold it.
  static int64_t aligned(int64_t bytes);
  int64_t take(MemoryKind kind, std::string_view name, int64_t aligned_bytes);
  void give_back(int64_t offset);
  int64_t capacity_ = INT64_MAX;

 private:
  struct Block {
    int64_t bytes;
    MemoryKind kind;
    std::string_view name;  ///< interned
  };
  [[noreturn]] void exhausted(std::string_view name, DType dtype, const Shape& shape, int64_t bytes) const;
  void note_peak();
  /// What is live, by its offset: open addressing, since a plan asks for memory many million times.
  class Live {
   public:
    void insert(int64_t offset, const Block& block);
    bool take(int64_t offset, Block& block);  ///< out of it; false: there is none
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
    std::vector<Slot> slots_;  // a power of two, at most half of them used
    size_t used_ = 0;
  };
  struct Gap {  // moved as bytes, which a pair is not
    int64_t first, second;
    auto operator<=>(const Gap&) const = default;
  };
  using Gaps = std::vector<Gap>;  // in order; a few hundred at most
  void add_size(Gap gap);         // to free_by_size_
  void erase_size(Gap gap);
  void replace_size(Gaps::iterator old, Gap gap);  // each entry between the two moves once

  Live live_;
  Gaps free_;          // (offset, bytes), below top_, never adjacent
  Gaps free_by_size_;  // the same as (bytes, offset)
  int64_t top_ = 0;    // everything above is free
  int64_t live_bytes_ = 0;
  std::array<int64_t, kMemoryKindCount> kind_bytes_{};
  MemoryUse peak_;
};

/// On a device: one allocation of `bytes`, which may be host memory that copies to a GPU go through.
class Arena : public Memory {
 public:
  Arena(DeviceKind device, int64_t bytes);
  int64_t bytes() const { return capacity_; }
  /// Host memory for copies to and from `device`: its tensors are the CPU's.
  static std::unique_ptr<Arena> staging(DeviceKind device, int64_t bytes);

 private:
  Arena(DeviceKind device, int64_t bytes, std::shared_ptr<void> memory);
  Tensor make(int64_t offset, std::string_view name, DType dtype, Shape shape) override;
  int64_t offset_of(const Tensor& t) const override;
  DeviceKind device_;
  std::shared_ptr<void> memory_;
};

struct CpuArena final : Arena {
  explicit CpuArena(int64_t bytes) : Arena(DeviceKind::cpu, bytes) {}
};

}  // namespace ltrain
