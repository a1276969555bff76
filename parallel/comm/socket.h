// TCP sockets between the processes of a job: addresses with and without a name, listening, connecting.
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
  /// A numeric address; one of a link has its interface behind it, fe80::1%eth0.
  static std::optional<SocketAddress> parse(const std::string& text, int port);
  int port() const;
  void set_port(int port);
  /// Numeric, without the port. One of IPv4 in IPv6 is that of IPv4.
  std::string text() const;
  int family() const { return storage_.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

/// Those of a host's name or numeric address, without a port. None, and why: the name is unknown.
std::vector<SocketAddress> addresses_of_name(const std::string& name, std::string* why);
/// Those of a network interface of this host ("eth0"), IPv4 first, as most networks of clusters have it.
std::vector<SocketAddress> addresses_of_interface(const std::string& name);
/// addresses_of_name as text, each once. `error` has the name too.
std::vector<std::string> resolve(const std::string& host, std::string* error);

/// A socket that does not block; invalid, and errno, when there is none to have.
Fd open_socket(const SocketAddress& address);
/// A listening socket at the address; port 0: any that is free, which `port` gets. Invalid, and errno: it
/// cannot be had.
Fd listen_at(const SocketAddress& address, int* port);
/// A listening socket on the first free of `ports` (0: any). Empty address: all addresses of this host, IPv6
/// and IPv4. Returns an invalid Fd and sets `error`, and errno of the last, when none is free.
Fd listen_on(const std::string& address, const std::vector<int>& ports, int* port, std::string* error);

/// One attempt; 0, or the errno that says why not.
int connect_to(const Fd& socket, const SocketAddress& address, SteadyTime deadline);
struct Connection {
  Fd fd;
  std::string address;  ///< that answered, numeric
  int port = 0;
};
/// One attempt at a numeric address. Invalid, and why, when nobody answers.
Connection connect_once(const std::string& address, int port, SteadyTime deadline, std::string* error);
/// Small messages leave at once.
void send_at_once(const Fd& socket);

std::string peer_address(int fd);   ///< numeric, without the port
std::string local_address(int fd);  ///< numeric, without the port
bool is_loopback(const std::string& address);

void set_nonblocking(int fd);
std::string host_name();

}  // namespace ltrain
