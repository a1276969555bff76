#include "runtime/telemetry/metrics_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <utility>

#include "base/error.h"
#include "parallel/comm/socket.h"

namespace ltrain {
namespace {

constexpr double kSeconds = 2;            // longest time for a request, and for its answer
constexpr size_t kMostRequest = 1 << 13;  // bytes

std::string reply(const char* status, const std::string& body, bool with_body = true) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      status, body.size(), with_body ? body : "");
}

/// The path of "GET /metrics?x=1 HTTP/1.1", without what follows a question mark.
std::string path_of(const std::string& line, size_t method) {
  const size_t end = line.find_first_of(" ?\r\n", method);
  return line.substr(method, end == std::string::npos ? end : end - method);
}

}  // namespace

MetricsServer::MetricsServer(int port) {
  std::string error;
  listener_ = listen_on("", {port}, &port_, &error);
  if (!listener_.valid())
    fail(ExitCode::usage, "telemetry.prometheus_port = {}: {}; choose another port above 1023", port, error);
  stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread([this] { loop(); });
}

MetricsServer::~MetricsServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void MetricsServer::set_page(std::string page) {
  const std::lock_guard lock(mutex_);
  page_ = std::move(page);
}

/// Returns whether the client is ready before the deadline and before the end of the server.
bool MetricsServer::wait(const Fd& client, short events, SteadyTime deadline) const {
  pollfd polled[] = {{client.get(), events, 0}, {stop_.get(), POLLIN, 0}};
  return ::poll(polled, 2, poll_timeout(deadline)) > 0 && polled[1].revents == 0;
}

void MetricsServer::answer(const Fd& client) {
  const SteadyTime deadline = after(kSeconds);
  std::string request;
  while (request.find("\r\n\r\n") == std::string::npos) {
    char bytes[1024];
    if (request.size() > kMostRequest || !wait(client, POLLIN, deadline)) return;
    const ssize_t n = ::recv(client.get(), bytes, sizeof bytes, 0);
    if (n <= 0) return;
    request.append(bytes, static_cast<size_t>(n));
  }
  std::string text;
  const bool head = request.starts_with("HEAD ");
  if (!head && !request.starts_with("GET ")) {
    text = reply("405 Method Not Allowed", "only GET and HEAD\n");
  } else if (path_of(request, head ? 5 : 4) != "/metrics") {
    text = reply("404 Not Found", "the metrics are at /metrics\n", !head);
  } else {
    const std::lock_guard lock(mutex_);
    text = reply("200 OK", page_, !head);
  }
  const SteadyTime end = after(kSeconds);
  for (size_t sent = 0; sent < text.size() && wait(client, POLLOUT, end);) {
    const ssize_t n = ::send(client.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;
    sent += static_cast<size_t>(n);
  }
}

void MetricsServer::loop() {
  while (true) {
    pollfd polled[] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    ::poll(polled, 2, -1);
    if (polled[1].revents != 0) return;
    const Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client.valid()) {
      answer(client);
    } else {
      // No descriptor is left, or the client is gone: poll() may return at once.
      wait(stop_, 0, after(0.1));
    }
  }
}

}  // namespace ltrain
