#include "kernels/tensor/arena.h"

#include <algorithm>

#include "kernels/base/interned.h"
#include "kernels/tensor/device.h"

namespace ltrain {
namespace {

/// Nodes of containers that were erased, for those that are inserted next: a step asks for memory and gives
/// it back many thousand times, a plan of one many million times.
template <class Container>
std::vector<typename Container::node_type>& spare_nodes() {
  thread_local std::vector<typename Container::node_type> nodes;
  return nodes;
}

template <class Container>
void erase_kept(Container& c, typename Container::const_iterator at) {
  constexpr size_t kMost = 1024;
  auto node = c.extract(at);
  if (auto& spare = spare_nodes<Container>(); spare.size() < kMost) spare.push_back(std::move(node));
}

/// `set(node)` gives a spare node its key and value; else `make()` inserts a new one.
template <class Container, class Set, class Make>
void insert_kept(Container& c, const Set& set, const Make& make) {
  auto& spare = spare_nodes<Container>();
  if (spare.empty()) return make();
  auto node = std::move(spare.back());
  spare.pop_back();
  set(node);
  c.insert(std::move(node));
}

}  // namespace

std::string_view memory_kind_name(MemoryKind k) {
  constexpr std::string_view names[kMemoryKindCount] = {
      "parameters", "gradients", "optimizer", "activations", "temporaries", "communication", "fp8 weights"};
  return names[static_cast<int>(k)];
}

Tensor Memory::allocate(MemoryKind kind, std::string_view name, DType dtype, Shape shape) {
  const int64_t bytes = std::max<int64_t>(
      kAlignment, (shape.elements() * dtype_size(dtype) + kAlignment - 1) / kAlignment * kAlignment);
  // Best fit: the smallest gap that holds it, the lowest among equals; else on top.
  const auto best = free_by_size_.lower_bound({bytes, 0});
  int64_t offset;
  if (best != free_by_size_.end()) {
    offset = best->second;
    const int64_t rest = best->first - bytes;
    erase_kept(free_, free_.find(offset));
    erase_kept(free_by_size_, best);
    if (rest > 0) add_free(offset + bytes, rest);
  } else {
    offset = top_;
    // A free block that ends at the top grows.
    if (!free_.empty()) {
      auto last = std::prev(free_.end());
      if (last->first + last->second == top_) {
        offset = last->first;
        erase_free(last);
      }
    }
    if (bytes > capacity_ - offset) exhausted(name, dtype, shape, bytes);
    top_ = offset + bytes;
  }
  const Block block{bytes, kind, interned(name)};
  insert_kept(
      live_, [&](auto& node) { node.key() = offset, node.mapped() = block; },
      [&] { live_.emplace(offset, block); });
  live_bytes_ += bytes;
  kind_bytes_[static_cast<int>(kind)] += bytes;
  if (top_ > peak_.arena_bytes || live_bytes_ > peak_.live_bytes) note_peak();
  return make(offset, name, dtype, shape);
}

void Memory::release(Tensor& t) {
  auto it = live_.find(offset_of(t));
  LT_CHECK(it != live_.end(), "release of a tensor that is not live");
  int64_t offset = it->first, bytes = it->second.bytes;
  live_bytes_ -= bytes;
  kind_bytes_[static_cast<int>(it->second.kind)] -= bytes;
  erase_kept(live_, it);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    erase_free(next++);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      erase_free(before);
    }
  }
  if (offset + bytes == top_) {
    top_ = offset;
  } else {
    add_free(offset, bytes);
  }
  t = Tensor();
}

void Memory::add_free(int64_t offset, int64_t bytes) {
  insert_kept(
      free_, [&](auto& node) { node.key() = offset, node.mapped() = bytes; },
      [&] { free_.emplace(offset, bytes); });
  insert_kept(
      free_by_size_,
      [&](auto& node) {
        node.value() = {bytes, offset};
      },
      [&] {
        free_by_size_.insert({bytes, offset});
      });
}

void Memory::erase_free(std::map<int64_t, int64_t>::iterator block) {
  erase_kept(free_by_size_, free_by_size_.find({block->second, block->first}));
  erase_kept(free_, block);
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
  for (const auto& [offset, block] : live_) rows.push_back({block.bytes, &block});
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
