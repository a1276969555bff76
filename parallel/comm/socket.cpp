#include "parallel/comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/printable.h"

namespace ltrain {

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name[0] ? printable(name) : "localhost";
}

namespace {

std::string numeric(const sockaddr_storage& a) {
  char text[INET6_ADDRSTRLEN] = {};
  if (a.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(a).sin_addr, text, sizeof(text));
    return text;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(a);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {  // an IPv4 peer on the socket that serves both
    ::inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text, sizeof(text));
    return text;
  }
  ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return text;
}

/// A numeric address with a port; an empty address is "all of this host".
bool make_address(const std::string& address, int port, sockaddr_storage* out, socklen_t* length) {
  std::memset(out, 0, sizeof(*out));
  auto* v4 = reinterpret_cast<sockaddr_in*>(out);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(out);
  if (::inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET, v4->sin_port = htons(static_cast<uint16_t>(port)), *length = sizeof(*v4);
    return true;
  }
  if (::inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6, v6->sin6_port = htons(static_cast<uint16_t>(port)), *length = sizeof(*v6);
    return true;
  }
  return false;
}

Fd try_listen(const sockaddr_storage& address, socklen_t length, int* port) {
  Fd fd(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return {};
  const int one = 1, zero = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (address.ss_family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), 1024) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
    return {};
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  *port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return fd;
}

}  // namespace

Fd listen_on(const std::string& address, const std::vector<int>& ports, int* port, std::string* error) {
  error->clear();
  for (int p : ports) {
    for (const char* any : {"::", "0.0.0.0"}) {
      sockaddr_storage a;
      socklen_t length = 0;
      if (!make_address(address.empty() ? any : address, p, &a, &length)) {
        *error = fmt::format("\"{}\" is not a numeric address", address);
        return {};
      }
      Fd fd = try_listen(a, length, port);
      if (fd.valid()) return fd;
      const int why = errno;
      if (!address.empty() || why == EADDRINUSE || any[0] == '0') {
        *error += fmt::format("{}port {}: {}", error->empty() ? "" : "; ", p, std::strerror(why));
        errno = why;
        break;
      }
    }
  }
  return {};
}

std::vector<std::string> resolve(const std::string& host, std::string* error) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int rc = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (rc != 0) {
    *error = fmt::format("{}: {}", host, ::gai_strerror(rc));
    return {};
  }
  std::vector<std::string> addresses;
  for (addrinfo* a = list; a; a = a->ai_next) {
    sockaddr_storage s{};
    std::memcpy(&s, a->ai_addr, std::min<size_t>(a->ai_addrlen, sizeof(s)));
    const std::string text = numeric(s);
    bool seen = false;
    for (const auto& known : addresses) seen = seen || known == text;
    if (!seen) addresses.push_back(text);
  }
  ::freeaddrinfo(list);
  return addresses;
}

Connection connect_once(const std::string& address, int port, SteadyTime deadline, std::string* error) {
  sockaddr_storage a;
  socklen_t length = 0;
  if (!make_address(address, port, &a, &length)) {
    *error = "not a numeric address";
    return {};
  }
  Fd fd(::socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int why = errno;
  if (fd.valid()) {
    why = 0;
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&a), length) != 0) why = errno;
    if (why == EINPROGRESS) {
      pollfd p{fd.get(), POLLOUT, 0};
      int ready;
      do ready = ::poll(&p, 1, poll_timeout(deadline));
      while (ready < 0 && errno == EINTR);
      socklen_t size = sizeof(why);
      if (ready <= 0)
        why = ETIMEDOUT;
      else
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &why, &size);
    }
  }
  if (why != 0) {
    *error = std::strerror(why);
    return {};
  }
  const int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return {std::move(fd), address, port};
}

std::string peer_address(int fd) {
  sockaddr_storage a{};
  socklen_t size = sizeof(a);
  return ::getpeername(fd, reinterpret_cast<sockaddr*>(&a), &size) == 0 ? numeric(a) : "?";
}

std::string local_address(int fd) {
  sockaddr_storage a{};
  socklen_t size = sizeof(a);
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size) == 0 ? numeric(a) : "?";
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

}  // namespace ltrain
