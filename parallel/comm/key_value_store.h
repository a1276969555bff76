// Rendezvous of ranks that do not know each other yet.
#pragma once
#include <memory>
#include <string>

namespace ltrain {

/// Store in which ranks leave their addresses for each other. Keys are written once. Thread-safe.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until the key is set and returns its value; throws ltrain::Error (rank_lost) after
  /// `timeout_seconds`.
  virtual std::string get(const std::string& key, double timeout_seconds) = 0;
};

/// A store for ranks that are threads, or for tests that fork after connecting in another way.
std::shared_ptr<KeyValueStore> make_memory_store();

}  // namespace ltrain
