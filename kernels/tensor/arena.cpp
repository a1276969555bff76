#include "kernels/tensor/arena.h"

#include <algorithm>

#include "kernels/base/interned.h"
#include "kernels/tensor/device.h"

namespace ltrain {
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
  return make(offset, name, dtype, shape);
}

int64_t Memory::take(MemoryKind kind, std::string_view name, int64_t bytes) {
  // Best fit: the smallest gap that holds it, the lowest among equals; else on top.
  const auto best =
      std::lower_bound(free_by_size_.begin(), free_by_size_.end(), std::pair(bytes, int64_t{0}));
  int64_t offset;
  if (best != free_by_size_.end()) {
    const int64_t rest = best->first - bytes;
    offset = best->second;
    free_by_size_.erase(best);
    const auto gap = std::lower_bound(free_.begin(), free_.end(), std::pair(offset, int64_t{0}));
    if (rest > 0) {
      *gap = {offset + bytes, rest};
      add_size(rest, offset + bytes);
    } else {
      free_.erase(gap);
    }
  } else {
    // A free block that ends at the top grows.
    const bool grows = !free_.empty() && free_.back().first + free_.back().second == top_;
    offset = grows ? free_.back().first : top_;
    if (bytes > capacity_ - offset) return -1;
    if (grows) {
      erase_size(free_.back().second, offset);
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

void Memory::release(Tensor& t) {
  give_back(offset_of(t));
  t = Tensor();
}

void Memory::give_back(int64_t offset) {
  Block block{};
  LT_CHECK(live_.take(offset, block), "release of a tensor that is not live");
  int64_t bytes = block.bytes;
  live_bytes_ -= bytes;
  kind_bytes_[static_cast<int>(block.kind)] -= bytes;
  // One gap with those that lie next to it.
  auto gap = std::lower_bound(free_.begin(), free_.end(), std::pair(offset, int64_t{0}));
  const bool after = gap != free_.end() && offset + bytes == gap->first;
  const bool before = gap != free_.begin() && gap[-1].first + gap[-1].second == offset;
  if (after) {
    bytes += gap->second;
    erase_size(gap->second, gap->first);
  }
  if (before) {
    --gap;
    offset = gap->first;
    bytes += gap->second;
    erase_size(gap->second, gap->first);
  }
  const bool on_top = offset + bytes == top_;
  if (after && before) gap = free_.erase(gap + 1) - 1;
  if (on_top) {
    top_ = offset;
    if (after || before) free_.erase(gap);
    return;
  }
  if (after || before)
    *gap = {offset, bytes};
  else
    free_.insert(gap, {offset, bytes});
  add_size(bytes, offset);
}

void Memory::add_size(int64_t bytes, int64_t offset) {
  const std::pair gap(bytes, offset);
  free_by_size_.insert(std::lower_bound(free_by_size_.begin(), free_by_size_.end(), gap), gap);
}

void Memory::erase_size(int64_t bytes, int64_t offset) {
  free_by_size_.erase(std::lower_bound(free_by_size_.begin(), free_by_size_.end(), std::pair(bytes, offset)));
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
  // Those behind it that were pushed past this slot move up, so that no search ends too early.
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

Arena::Arena(DeviceKind device, int64_t bytes) : Arena(device, bytes, device_memory(device, bytes)) {}

Arena::Arena(DeviceKind device, int64_t bytes, std::shared_ptr<void> memory)
    : device_(device), memory_(std::move(memory)) {
  capacity_ = bytes;
}

std::unique_ptr<Arena> Arena::staging(DeviceKind device, int64_t bytes) {
  return std::unique_ptr<Arena>(new Arena(DeviceKind::cpu, bytes, host_memory(device, bytes)));
}

Tensor Arena::make(int64_t offset, std::string_view, DType dtype, Shape shape) {
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
