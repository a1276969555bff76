// HTTP requests through libcurl, which is opened on first use: the program starts without it, and takes the
// system's, with its certificates and proxies.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::objects {

struct HttpRequest {
  std::string method = "GET";  ///< GET, HEAD, PUT, POST or DELETE
  std::string url;             ///< full; never printed
  std::string name;            ///< for messages
  std::vector<std::string> headers;
  std::string_view body;          ///< sent by PUT and POST; outlives the request
  std::string certificates;       ///< StoreSettings::certificates
  bool follow_redirects = false;  ///< up to 5, of HTTP and HTTPS; never from HTTPS to HTTP
};

struct HttpResponse {
  int status = 0;                              ///< 0: none
  std::map<std::string, std::string> headers;  ///< last response; names in lower case
  std::string body;                            ///< body that no sink took; at most 16 MiB
  std::string failure;                         ///< why there is no complete response; empty: there is one
  bool can_retry = false;                      ///< another attempt may help
  bool stopped = false;                        ///< `stop` or the sink ended it

  std::string header(const std::string& name) const;  ///< empty: none
  bool ok() const { return failure.empty() && status >= 200 && status < 300; }
};

/// Takes the body of a response of status 2xx, after `begin` has seen its status and headers. Returns false
/// to end the transfer.
struct HttpSink {
  std::function<bool(const HttpResponse&)> begin;
  std::function<bool(const char* bytes, size_t count)> take;
};

/// One request. Returns after the response, a failure, a minute without a byte, or soon after `stop` is set.
/// Throws Error (usage) if this machine has no libcurl. Certificates of servers are checked.
HttpResponse send_once(const HttpRequest& request, const HttpSink* sink, const std::atomic<bool>* stop);

/// Waits before attempt `attempt` (1 is the second one): 0.2 s and doubled each time up to 20 s, with a
/// random part, or as long as the header Retry-After says, at most a minute. Returns early when `stop` is
/// set.
void wait_to_retry(int attempt, const HttpResponse& response, const std::atomic<bool>* stop);

inline constexpr int kAttempts = 7;  ///< attempts without a byte of progress

/// Sends up to kAttempts times while another attempt may help. `make` gives the request of each attempt.
HttpResponse send(const std::function<HttpRequest()>& make, const std::atomic<bool>* stop);

}  // namespace ltrain::objects
