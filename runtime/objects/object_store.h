// Requests to object stores and web servers: addresses, signatures, retries, and what went wrong.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/objects/credentials.h"
#include "runtime/objects/http_client.h"
#include "runtime/objects/signature.h"
#include "runtime/objects/url.h"

namespace ltrain::objects {

/// An object as a listing or a HEAD request shows it.
struct Object {
  Url url;
  int64_t size = 0;
  std::string etag;      ///< with its quotes, as the server gives it; empty: none
  std::string modified;  ///< Last-Modified, where there is no ETag

  std::string name() const { return url.name(); }
  /// Text that changes when the content does: URL, size, and ETag or time of change.
  std::string identity() const;
};

/// Access to the store of one URL's bucket or host. One thread at a time.
class ObjectStore {
 public:
  /// Throws Error (usage) as store_settings() does.
  explicit ObjectStore(const Url& url, const Variables& variable = process_variable);

  /// Request for an object or, with an empty `path` and a query, for the bucket. `body`: of PUT and POST; the
  /// caller keeps it while the request is sent. Its hash is part of the signature, and the store compares it.
  HttpRequest request(const std::string& method, const Url& url, const Pairs& query = {},
                      const Pairs& headers = {}, std::string_view body = {}) const;
  /// Sends such a request, and again while that may help. If a bucket is in another region than the default
  /// one, requests go to its region from then on.
  HttpResponse send(const std::string& method, const Url& url, const Pairs& query = {},
                    const Pairs& headers = {}, const std::atomic<bool>* stop = nullptr,
                    std::string_view body = {});

  /// Size and ETag of an object. Throws as fail_response() does.
  Object head(const Url& url);
  /// The same. Returns false if the server says that there is none (404), or a bucket does not say (403).
  bool try_head(const Url& url, Object& object);
  /// Up to `most_bytes` of an object. For small files that describe others.
  std::string read(const Object& object, int64_t most_bytes);

  /// Throws an Error that says what a response means: with the URL, the status, the store's code and message,
  /// and what would work. Code data; storage for a failure of the network or the server.
  [[noreturn]] void fail_response(const HttpResponse& response, const Url& url,
                                  const std::string& more = "") const;

  const StoreSettings& settings() const { return settings_; }

 private:
  bool learn_region(const HttpResponse& response);
  StoreSettings settings_;
};

/// Code and message of a store's error, from the XML of its body; empty: none.
struct StoreError {
  std::string code, message, region;
};
StoreError store_error(const HttpResponse& response);

}  // namespace ltrain::objects
