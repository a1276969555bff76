#include "parallel/comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
// Not <netinet/tcp.h>: it conflicts with this header, and lacks fields that gloo_pairs.cpp reads.
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain {

SocketAddress::SocketAddress(const sockaddr* from, socklen_t size)
    : size_(std::min<socklen_t>(size, sizeof(storage_))) {
  std::memcpy(&storage_, from, size_);
}

std::optional<SocketAddress> SocketAddress::parse(const std::string& text, int port) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  std::optional<SocketAddress> address;
  if (::inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    address.emplace(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
  } else if (::inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    address.emplace(reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
  } else if (text.find('%') != std::string::npos) {  // inet_pton does not parse interfaces
    addrinfo hints{}, *list = nullptr;
    hints.ai_family = AF_INET6, hints.ai_socktype = SOCK_STREAM, hints.ai_flags = AI_NUMERICHOST;
    if (::getaddrinfo(text.c_str(), nullptr, &hints, &list) != 0) return {};
    address.emplace(list->ai_addr, list->ai_addrlen);
    ::freeaddrinfo(list);
  }
  if (address) address->set_port(port);
  return address;
}

int SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port
                                    : reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
}

void SocketAddress::set_port(int port) {
  (family() == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage_).sin6_port
                        : reinterpret_cast<sockaddr_in&>(storage_).sin_port) =
      htons(static_cast<uint16_t>(port));
}

std::string SocketAddress::text() const {
  char text[INET6_ADDRSTRLEN + 32] = "?";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage_);
  if (family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))  // on a socket for both families
    ::inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text, sizeof(text));
  else
    ::getnameinfo(get(), size_, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::vector<SocketAddress> addresses_of_name(const std::string& name, std::string* why) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int rc = ::getaddrinfo(name.c_str(), nullptr, &hints, &list); rc != 0) {
    *why = ::gai_strerror(rc);
    return {};
  }
  std::vector<SocketAddress> out;
  for (const addrinfo* a = list; a; a = a->ai_next) out.emplace_back(a->ai_addr, a->ai_addrlen);
  ::freeaddrinfo(list);
  return out;
}

std::vector<SocketAddress> addresses_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  std::vector<SocketAddress> v4, v6;
  if (::getifaddrs(&list) == 0) {
    for (const ifaddrs* a = list; a; a = a->ifa_next)
      if (a->ifa_addr && name == a->ifa_name) {
        if (a->ifa_addr->sa_family == AF_INET) v4.emplace_back(a->ifa_addr, sizeof(sockaddr_in));
        if (a->ifa_addr->sa_family == AF_INET6) v6.emplace_back(a->ifa_addr, sizeof(sockaddr_in6));
      }
    ::freeifaddrs(list);
  }
  v4.insert(v4.end(), v6.begin(), v6.end());
  return v4;
}

std::vector<std::string> resolve(const std::string& host, std::string* error) {
  std::string why;
  std::vector<std::string> texts;
  for (const SocketAddress& a : addresses_of_name(host, &why))
    if (const std::string text = a.text(); std::find(texts.begin(), texts.end(), text) == texts.end())
      texts.push_back(text);
  if (!why.empty()) *error = fmt::format("{}: {}", host, why);
  return texts;
}

Fd open_socket(const SocketAddress& address) {
  return Fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Fd listen_at(const SocketAddress& address, int* port) {
  Fd fd = open_socket(address);
  if (!fd.valid()) return {};
  const int one = 1, zero = 0;
  // A fixed port may still have connections of an earlier job.
  if (address.port() != 0) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (address.family() == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  if (::bind(fd.get(), address.get(), address.size()) != 0 || ::listen(fd.get(), 4096) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
    return {};
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  *port = SocketAddress(reinterpret_cast<const sockaddr*>(&bound), size).port();
  return fd;
}

Fd listen_on(const std::string& address, const std::vector<int>& ports, int* port, std::string* error) {
  error->clear();
  for (int p : ports) {
    for (const char* any : {"::", "0.0.0.0"}) {
      const auto a = SocketAddress::parse(address.empty() ? any : address, p);
      if (!a) {
        *error = fmt::format("\"{}\" is not a numeric address", address);
        return {};
      }
      Fd fd = listen_at(*a, port);
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

int connect_to(const Fd& socket, const SocketAddress& address, SteadyTime deadline) {
  int why = 0;
  if (::connect(socket.get(), address.get(), address.size()) != 0) why = errno;
  if (why != EINPROGRESS) return why;
  pollfd p{socket.get(), POLLOUT, 0};
  int ready;
  do ready = ::poll(&p, 1, poll_timeout(deadline));
  while (ready < 0 && errno == EINTR);
  if (ready <= 0) return ETIMEDOUT;
  socklen_t size = sizeof(why);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &why, &size);
  return why;
}

Connection connect_once(const std::string& address, int port, SteadyTime deadline, std::string* error) {
  const auto a = SocketAddress::parse(address, port);
  if (!a) {
    *error = "not a numeric address";
    return {};
  }
  Fd fd = open_socket(*a);
  const int why = fd.valid() ? connect_to(fd, *a, deadline) : errno;
  if (why != 0) {
    *error = std::strerror(why);
    return {};
  }
  send_at_once(fd);
  return {std::move(fd), address, port};
}

void send_at_once(const Fd& socket) {
  const int one = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

namespace {

/// Address that getpeername or getsockname returns.
template <class F>
std::string address_of(int fd, F&& name) {
  sockaddr_storage a{};
  socklen_t size = sizeof(a);
  if (name(fd, reinterpret_cast<sockaddr*>(&a), &size) != 0) return "?";
  return SocketAddress(reinterpret_cast<const sockaddr*>(&a), size).text();
}

}  // namespace

std::string peer_address(int fd) { return address_of(fd, ::getpeername); }

std::string local_address(int fd) { return address_of(fd, ::getsockname); }

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name[0] ? printable(name) : "localhost";
}

}  // namespace ltrain
