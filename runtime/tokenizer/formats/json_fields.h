// Fields of an untrusted JSON object: each is read, or refused by name.
#pragma once
#include <cstdint>
#include <set>
#include <string>

#include "base/json/json.h"

namespace ltrain::data {

/// Upper limit on the tokens of a tokenizer.json or tekken.json.
inline constexpr int64_t kMostJsonTokens = int64_t{1} << 20;

/// Errors (data) give `where`, the key, its value and the expected value.
class JsonFields {
 public:
  using Json = nlohmann::json;
  /// Fails unless `object` is a JSON object.
  JsonFields(const Json& object, std::string where);

  const std::string& where() const { return where_; }
  std::string where(const std::string& key) const { return where_ + "." + key; }
  /// Value of the key; null if it is missing or null.
  const Json* find(const std::string& key);
  const Json& get(const std::string& key);  ///< fails if the key is missing
  std::string text(const std::string& key);
  std::string text(const std::string& key, const std::string& missing);
  bool truth(const std::string& key, bool missing);
  int64_t integer(const std::string& key, int64_t low, int64_t high);
  const Json& list(const std::string& key);
  /// Accepts a key that does not matter.
  void pass_over(const std::string& key) { read_.insert(key); }
  /// Fails for a value that is present, not null, and not in `accepted`.
  void refuse(const std::string& key, const std::string& why, std::initializer_list<Json> accepted = {});
  /// Fails if a key was not read.
  void done() const;

 private:
  const Json& object_;
  std::string where_;
  std::set<std::string> read_;
};

}  // namespace ltrain::data
