#include "parallel/comm/key_value_store.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "base/error.h"

namespace ltrain {
namespace {

class MemoryStore final : public KeyValueStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, double timeout_seconds) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds),
                           [&] { return values_.contains(key); }))
      fail(ExitCode::rank_lost, "no rank set \"{}\" within {:g} s", key, timeout_seconds);
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace

std::shared_ptr<KeyValueStore> make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace ltrain
