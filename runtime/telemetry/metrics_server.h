// An HTTP server with one page, for programs that collect metrics.
#pragma once
#include <mutex>
#include <string>
#include <thread>

#include "base/deadline.h"
#include "base/fd.h"

namespace ltrain {

/// Answers `GET /metrics` on a thread of its own, one request at a time. No byte of a request is used but its
/// first line, and a client whose request is not complete after two seconds is dropped.
class MetricsServer {
 public:
  /// Listens at `port` of all addresses of this host; 0: any free port. Throws Error (usage) if it cannot.
  explicit MetricsServer(int port);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }
  /// Sets the page, in the exposition format 0.0.4 of Prometheus. Empty until the first call.
  void set_page(std::string page);

 private:
  void loop();
  void answer(const Fd& client);
  bool wait(const Fd& client, short events, SteadyTime deadline) const;

  int port_ = 0;
  Fd listener_, stop_;
  std::mutex mutex_;
  std::string page_;
  std::thread thread_;
};

}  // namespace ltrain
