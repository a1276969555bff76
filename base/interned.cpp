#include "base/interned.h"

#include <array>
#include <bit>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_set>

namespace ltrain {
namespace {

struct Names {
  std::mutex mutex;
  std::unordered_set<std::string> all;  // elements never move
};

Names& names() {
  static Names* const shared = new Names;  // never destroyed: threads may outlive static objects
  return *shared;
}

}  // namespace

std::string_view interned(std::string_view text) {
  // Fast path: most names are literals, or have the same address as last time.
  thread_local std::array<std::string_view, 512> recent;
  thread_local std::unordered_set<std::string_view> known;
  const auto place = (std::bit_cast<uintptr_t>(text.data()) + text.size()) * 0x9e3779b97f4a7c15u;
  std::string_view& slot = recent[place >> 55];
  if (slot.data() == text.data() && slot.size() == text.size()) return slot;  // same text at the same address
  if (slot == text) return slot;
  if (const auto it = known.find(text); it != known.end()) return slot = *it;
  Names& shared = names();
  const std::scoped_lock lock(shared.mutex);
  return slot = *known.insert(*shared.all.emplace(text).first).first;
}

}  // namespace ltrain
