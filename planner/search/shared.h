// A table of values that threads compute once each.
#pragma once
#include <map>
#include <mutex>

namespace ltrain {

/// Values by key. Each is computed once, by the first thread that requests it.
template <class Key, class Value>
class Shared {
 public:
  template <class Make>
  const Value& get(const Key& key, const Make& make) {
    Entry* entry = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      entry = &entries_[key];
    }
    std::call_once(entry->once, [&] { entry->value = make(); });
    return entry->value;
  }
  size_t size() const {
    const std::scoped_lock lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    std::once_flag once;
    Value value;
  };
  mutable std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

}  // namespace ltrain
