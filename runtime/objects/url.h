// URLs of training data: https://, http://, s3://BUCKET/KEY and gs://BUCKET/KEY.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ltrain::objects {

struct Url {
  enum Scheme : uint8_t { http, https, s3, gs };
  Scheme scheme = https;
  std::string host;   ///< host with its port; s3 and gs: the bucket
  std::string path;   ///< http and https: from the first slash, as given; s3 and gs: the key, not encoded
  std::string query;  ///< http and https: without the question mark; may hold secrets

  bool is_bucket() const { return scheme == s3 || scheme == gs; }
  /// The URL without its query, for messages, logs and names of formats. On one line.
  std::string name() const;
  /// The full URL. Never printed.
  std::string full() const;

 private:
  std::string path_text() const;
};

/// Returns whether an input is a URL that is read, by its first letters.
bool is_url(std::string_view input);

/// Throws Error (usage) for a URL without a host or bucket, with a user name or password, or with characters
/// that a URL does not have. The text of the error has no user name, password or query.
Url parse_url(std::string_view text);

/// Throws Error (usage) for a query, which may hold secrets. `key`: the recipe's key. Recipes are written to
/// logs and checkpoints.
void refuse_query(const Url& url, const std::string& key);

}  // namespace ltrain::objects
