// TCP sockets between the processes of a job: addresses, names, listening, connecting.
#pragma once
#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"

namespace ltrain {

/// An IPv4 or IPv6 address of a host, and a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* from, socklen_t size);
  /// Parses a numeric address; a link-local one has its interface appended, fe80::1%eth0.
  static std::optional<SocketAddress> parse(const std::string& text, int port);
  int port() const;
  void set_port(int port);
  /// Numeric, without the port. An IPv4 address mapped to IPv6 is shown as IPv4.
  std::string text() const;
  int family() const { return storage_.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

/// Addresses of a host name or numeric address, without a port. Empty, with the reason, if the name is
/// unknown.
std::vector<SocketAddress> addresses_of_name(const std::string& name, std::string* why);
/// Addresses of a network interface of this host ("eth0"), IPv4 first, as is usual in clusters.
std::vector<SocketAddress> addresses_of_interface(const std::string& name);
/// addresses_of_name as text, without duplicates. `error` includes the name.
std::vector<std::string> resolve(const std::string& host, std::string* error);

/// A non-blocking socket; invalid, with errno, on failure.
Fd open_socket(const SocketAddress& address);
/// A listening socket at the address; port 0: any free port, returned in `port`. Invalid, with errno, on
/// failure.
Fd listen_at(const SocketAddress& address, int* port);
/// A listening socket on the first free port of `ports` (0: any). Empty address: all addresses of this host,
/// IPv6 and IPv4. If none is free, returns an invalid Fd and sets `error`, and errno of the last attempt.
Fd listen_on(const std::string& address, const std::vector<int>& ports, int* port, std::string* error);

/// One attempt; returns 0 or an errno.
int connect_to(const Fd& socket, const SocketAddress& address, SteadyTime deadline);
struct Connection {
  Fd fd;
  std::string address;  ///< numeric address that answered
  int port = 0;
};
/// One attempt at a numeric address. Invalid, with the reason, without an answer.
Connection connect_once(const std::string& address, int port, SteadyTime deadline, std::string* error);
/// Disables delays of small messages.
void send_at_once(const Fd& socket);

std::string peer_address(int fd);   ///< numeric, without the port
std::string local_address(int fd);  ///< numeric, without the port
bool is_loopback(const std::string& address);

void set_nonblocking(int fd);
std::string host_name();

}  // namespace ltrain
