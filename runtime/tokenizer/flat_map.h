// A hash table of 64-bit keys for inner loops: open addressing in one array, at most half full.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ltrain::data {

/// ~0 is not a valid key. Keys cannot be removed.
template <class Value>
class FlatMap {
 public:
  FlatMap() : slots_(1 << 10) {}

  size_t size() const { return size_; }
  const Value* find(uint64_t key) const {
    const Slot& slot = slots_[place(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  /// Value of the key; a new key gets `Value()`. The reference is valid until the next new key.
  Value& operator[](uint64_t key) {
    size_t at = place(key);
    if (slots_[at].key == key) return slots_[at].value;
    if (2 * ++size_ > slots_.size()) {
      std::vector<Slot> old(2 * slots_.size());
      old.swap(slots_);
      --shift_;
      for (Slot& s : old)
        if (s.key != kNone) slots_[place(s.key)] = std::move(s);
      at = place(key);
    }
    slots_[at].key = key;
    return slots_[at].value;
  }
  /// Calls `use(key, value)` for each key, in unspecified order.
  template <class F>
  void each(F&& use) const {
    for (const Slot& s : slots_)
      if (s.key != kNone) use(s.key, s.value);
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  struct Slot {
    uint64_t key = kNone;
    Value value{};
  };
  size_t place(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t at = key * 0x9e3779b97f4a7c15u >>
                shift_;  // Fibonacci hashing: the high bits of the multiplication depend on the whole key
    while (slots_[at].key != kNone && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }

  std::vector<Slot> slots_;  // the size is a power of two, 2^(64 - shift_)
  int shift_ = 54;
  size_t size_ = 0;
};

}  // namespace ltrain::data
