#include "runtime/telemetry/metrics_server.h"

#include <poll.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "base/error.h"
#include "base/time_scale.h"
#include "parallel/comm/socket.h"

using namespace ltrain;
using Catch::Contains;

namespace {

/// Returns all that the server sends to a client that sends `request`, up to the end of the connection.
std::string answer_to(const MetricsServer& server, const std::string& request) {
  std::string error;
  const Connection c = connect_once("127.0.0.1", server.port(), after(10), &error);
  REQUIRE(c.fd.valid());
  const ssize_t sent = ::send(c.fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  CHECK((sent == static_cast<ssize_t>(request.size()) || request.size() > 10000));
  std::string answer;
  char bytes[4096];
  while (true) {
    pollfd p{c.fd.get(), POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(20000 * time_scale())) <= 0) return answer + "(no end)";
    const ssize_t n = ::recv(c.fd.get(), bytes, sizeof bytes, 0);
    if (n <= 0) return answer;
    answer.append(bytes, static_cast<size_t>(n));
  }
}

}  // namespace

TEST_CASE("the server of metrics answers with the newest page, and only for its path") {
  MetricsServer server(0);
  CHECK_THAT(answer_to(server, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"),
             Contains("HTTP/1.1 200 OK\r\n") && Contains("Content-Length: 0\r\n"));
  server.set_page("a 1\n");
  server.set_page("a 2\n");
  const std::string page = answer_to(server, "GET /metrics?x=y HTTP/1.1\r\nHost: a\r\n\r\n");
  CHECK_THAT(page, Contains("Content-Type: text/plain; version=0.0.4") && Contains("Content-Length: 4\r\n") &&
                       Contains("\r\n\r\na 2\n"));
  const std::string head = answer_to(server, "HEAD /metrics HTTP/1.0\r\n\r\n");
  CHECK_THAT(head, Contains("200 OK") && Contains("Content-Length: 4\r\n") && !Contains("a 2"));
  for (const char* path : {"/", "/metrics/x", "/../etc/passwd", ""})
    CHECK_THAT(answer_to(server, std::string("GET ") + path + " HTTP/1.1\r\n\r\n"),
               Contains("404 Not Found"));
  CHECK_THAT(answer_to(server, "POST /metrics HTTP/1.1\r\n\r\n"), Contains("405 Method Not Allowed"));
}

TEST_CASE("the server of metrics drops what is no request, and serves others after it") {
  MetricsServer server(0);
  server.set_page(std::string(3 << 20, 'x'));  // more than the kernel takes at once
  CHECK(answer_to(server, std::string(20000, 'a')).empty());
  CHECK_THAT(answer_to(server, std::string(100, '\0') + "\r\n\r\n"), Contains("405"));
  // One that is silent, at the same time as one that asks.
  std::string error;
  const Connection silent = connect_once("127.0.0.1", server.port(), after(10), &error);
  REQUIRE(silent.fd.valid());
  const auto begin = std::chrono::steady_clock::now();
  CHECK(answer_to(server, "GET /metrics HTTP/1.1\r\n\r\n").size() > 3 << 20);
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < 10 * time_scale());
  CHECK_THROWS_WITH(MetricsServer(server.port()),
                    Contains("telemetry.prometheus_port = ") && Contains("Address already in use"));
}

TEST_CASE("the server of metrics ends at once, also while a client is silent") {
  const auto begin = std::chrono::steady_clock::now();
  {
    MetricsServer server(0);
    std::string error;
    const Connection silent = connect_once("127.0.0.1", server.port(), after(10), &error);
    REQUIRE(silent.fd.valid());
  }
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < 1.5 * time_scale());
}
