// The fields of a JSON object from outside: each is read, or refused by name.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace ltrain::data {

/// Errors (data) name `where`, the key, what it is and what it should be.
class JsonFields {
 public:
  using Json = nlohmann::json;
  /// Error unless it is an object.
  JsonFields(const Json& object, std::string where);

  const std::string& where() const { return where_; }
  std::string where(const std::string& key) const { return where_ + "." + key; }
  /// Null where the key is missing or its value is null.
  const Json* find(const std::string& key);
  const Json& get(const std::string& key);  ///< Error where it is missing
  std::string text(const std::string& key);
  std::string text(const std::string& key, const std::string& missing);
  bool truth(const std::string& key, bool missing);
  int64_t integer(const std::string& key, int64_t low, int64_t high);
  const Json& list(const std::string& key);
  /// Of what does not matter: the key may be there.
  void pass_over(const std::string& key) { read_.insert(key); }
  /// Error for a value that is neither missing nor null nor one of `accepted`.
  void refuse(const std::string& key, const std::string& why, std::initializer_list<Json> accepted = {});
  /// Error where a key was not read.
  void done() const;

 private:
  const Json& object_;
  std::string where_;
  std::set<std::string> read_;
};

}  // namespace ltrain::data
