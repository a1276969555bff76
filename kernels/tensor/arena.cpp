#include "kernels/tensor/arena.h"

#include <algorithm>

#include "base/interned.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/out_of_memory.h"

namespace ltrain {
namespace {

/// The first gap that begins at or above `offset`.
template <class Gaps>
auto gap_from(Gaps& free, int64_t offset) {
  return std::lower_bound(free.begin(), free.end(), offset,
                          [](const auto& gap, int64_t at) { return gap.first < at; });
}

}  // namespace

std::string_view memory_kind_name(MemoryKind k) {
  constexpr std::string_view names[kMemoryKindCount] = {
      "parameters", "gradients", "optimizer", "activations", "temporaries", "communication", "fp8 weights"};
  return names[static_cast<int>(k)];
}

int64_t Memory::aligned(int64_t bytes) {
  return std::max<int64_t>(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

Tensor Memory::allocate(MemoryKind kind, std::string_view name, DType dtype, Shape shape) {
  const int64_t bytes = aligned(shape.elements() * dtype_size(dtype));
  const int64_t offset = take(kind, interned(name), bytes);
  if (offset < 0) exhausted(name, dtype, shape, bytes);
  return make(offset, kind, name, dtype, shape);
}

int64_t Memory::take(MemoryKind kind, std::string_view name, int64_t bytes) {
  // Best fit: the smallest gap that holds the bytes, the lowest among equals; else above the top.
  const auto best = std::lower_bound(free_by_size_.begin(), free_by_size_.end(), Gap{bytes, 0});
  int64_t offset;
  if (best != free_by_size_.end()) {
    const int64_t rest = best->first - bytes;
    offset = best->second;
    const auto gap = gap_from(free_, offset);
    if (rest > 0) {
      *gap = {offset + bytes, rest};
      replace_size(best, {rest, offset + bytes});
    } else {
      free_.erase(gap);
      free_by_size_.erase(best);
    }
  } else {
    // A gap that ends at the top grows.
    const bool grows = !free_.empty() && free_.back().first + free_.back().second == top_;
    offset = grows ? free_.back().first : top_;
    if (bytes > capacity_ - offset) return -1;
    if (grows) {
      erase_size({free_.back().second, offset});
      free_.pop_back();
    }
    top_ = offset + bytes;
  }
  live_.insert(offset, {bytes, kind, name});
  live_bytes_ += bytes;
  kind_bytes_[static_cast<int>(kind)] += bytes;
  if (top_ > peak_.arena_bytes || live_bytes_ > peak_.live_bytes) note_peak();
  return offset;
}

bool Memory::below_peak(int64_t bytes, int64_t most_live) const {
  const int64_t gap = free_by_size_.empty() ? 0 : free_by_size_.back().first;
  return live_bytes_ + most_live <= peak_.live_bytes && bytes <= std::max(gap, peak_.arena_bytes - top_);
}

void Memory::release(Tensor& t) {
  deallocate(offset_of(t));
  t = Tensor();
}

void Memory::deallocate(int64_t offset) {
  Block block{};
  LT_CHECK(live_.take(offset, block), "expected a release of a live tensor, got offset {}", offset);
  const int64_t bytes = block.bytes;
  live_bytes_ -= bytes;
  kind_bytes_[static_cast<int>(block.kind)] -= bytes;
  // Merges the gap with its neighbours.
  const auto next = gap_from(free_, offset);
  const bool after = next != free_.end() && offset + bytes == next->first;
  const bool before = next != free_.begin() && next[-1].first + next[-1].second == offset;
  Gap whole{offset, bytes};
  if (before) whole = {next[-1].first, next[-1].second + bytes};
  if (after) whole.second += next->second;
  const auto forget = [&](const Gap& gap) { erase_size({gap.second, gap.first}); };
  if (whole.first + whole.second == top_) {
    top_ = whole.first;
    if (after) forget(*next);
    if (before) forget(next[-1]);
    free_.erase(next - (before ? 1 : 0), next + (after ? 1 : 0));
    return;
  }
  if (!before && !after) {
    free_.insert(next, whole);
    add_size({bytes, offset});
    return;
  }
  if (before && after) forget(*next);
  const auto gap = before ? next - 1 : next;
  replace_size(std::lower_bound(free_by_size_.begin(), free_by_size_.end(), Gap{gap->second, gap->first}),
               {whole.second, whole.first});
  *gap = whole;
  if (before && after) free_.erase(next);
}

void Memory::add_size(Gap gap) {
  free_by_size_.insert(std::lower_bound(free_by_size_.begin(), free_by_size_.end(), gap), gap);
}

void Memory::erase_size(Gap gap) {
  free_by_size_.erase(std::lower_bound(free_by_size_.begin(), free_by_size_.end(), gap));
}

void Memory::replace_size(Gaps::iterator old, Gap gap) {
  if (gap < *old) {
    const auto at = std::lower_bound(free_by_size_.begin(), old, gap);
    std::move_backward(at, old, old + 1);
    *at = gap;
  } else {
    const auto end = std::lower_bound(old + 1, free_by_size_.end(), gap);
    *std::move(old + 1, end, old) = gap;
  }
}

size_t Memory::Live::home(int64_t offset) const {
  const uint64_t mixed = static_cast<uint64_t>(offset / kAlignment) * 0x9e3779b97f4a7c15ull;
  return static_cast<size_t>(mixed >> 32) & (slots_.size() - 1);
}

void Memory::Live::insert(int64_t offset, const Block& block) {
  if (2 * (used_ + 1) > slots_.size()) {
    std::vector<Slot> old(std::max<size_t>(64, 2 * slots_.size()));
    old.swap(slots_);
    used_ = 0;
    for (const Slot& s : old)
      if (s.offset >= 0) insert(s.offset, s.block);
  }
  size_t at = home(offset);
  while (slots_[at].offset >= 0) at = next(at);
  slots_[at] = {offset, block};
  ++used_;
}

bool Memory::Live::take(int64_t offset, Block& block) {
  if (offset < 0 || slots_.empty()) return false;
  size_t at = home(offset);
  while (slots_[at].offset != offset) {
    if (slots_[at].offset < 0) return false;
    at = next(at);
  }
  block = slots_[at].block;
  --used_;
  // Entries that were displaced past this slot move up, so that no search ends too early.
  const size_t mask = slots_.size() - 1;
  for (size_t from = next(at); slots_[from].offset >= 0; from = next(from)) {
    if (((from - home(slots_[from].offset)) & mask) < ((from - at) & mask)) continue;
    slots_[at] = slots_[from];
    at = from;
  }
  slots_[at].offset = -1;
  return true;
}

void Memory::note_peak() {
  peak_.arena_bytes = std::max(peak_.arena_bytes, top_);
  for (size_t i = 0; i < kind_bytes_.size(); ++i)
    peak_.most_by_kind[i] = std::max(peak_.most_by_kind[i], kind_bytes_[i]);
  if (live_bytes_ <= peak_.live_bytes) return;
  peak_.live_bytes = live_bytes_;
  peak_.by_kind = kind_bytes_;
}

void Memory::exhausted(std::string_view name, DType dtype, const Shape& shape, int64_t bytes) const {
  std::vector<std::pair<int64_t, const Block*>> rows;
  live_.each([&](const Block& block) { rows.push_back({block.bytes, &block}); });
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second->name < b.second->name;
  });
  std::string table;
  for (size_t i = 0; i < rows.size() && i < 12; ++i)
    table += fmt::format("\n  {:>14} bytes  {:<13} {}", rows[i].first, memory_kind_name(rows[i].second->kind),
                         rows[i].second->name);
  fail(ExitCode::internal,
       "the arena of {} bytes cannot hold '{}' {} {} ({} bytes): the step asks for more than its plan.\nlive "
       "now:{}",
       capacity_, name, dtype_name(dtype), to_string(shape), bytes, table);
}

namespace {

std::shared_ptr<void> block(DeviceKind device, int64_t bytes) {
  const MemoryPurpose purpose("the plan's tensors, which are one block");
  return device_memory(device, bytes);
}

}  // namespace

Arena::Arena(DeviceKind device, int64_t bytes) : Arena(device, bytes, block(device, bytes)) {}

Arena::Arena(DeviceKind device, int64_t bytes, std::shared_ptr<void> memory)
    : device_(device), memory_(std::move(memory)) {
  capacity_ = bytes;
}

std::unique_ptr<Arena> Arena::staging(DeviceKind device, int64_t bytes) {
  const MemoryPurpose purpose("copies to and from the GPU");
  return std::unique_ptr<Arena>(new Arena(DeviceKind::cpu, bytes, host_memory(device, bytes)));
}

Tensor Arena::make(int64_t offset, MemoryKind, std::string_view, DType dtype, Shape shape) {
  Tensor t;
  t.data = static_cast<char*>(memory_.get()) + offset;
  t.dtype = dtype;
  t.device = device_;
  t.shape = shape;
  return t;
}

int64_t Arena::offset_of(const Tensor& t) const {
  return static_cast<char*>(t.data) - static_cast<char*>(memory_.get());
}

}  // namespace ltrain
