// TCP sockets of the control channel: owned descriptors, listening, connecting with every address of a name.
#pragma once
#include <string>
#include <vector>

#include "kernels/base/deadline.h"
#include "kernels/base/fd.h"

namespace ltrain {

/// A listening socket on the first free of `ports` (0: any). Empty address: all addresses of this host, IPv6
/// and IPv4. Returns an invalid Fd and sets `error`, and errno of the last, when none is free.
Fd listen_on(const std::string& address, const std::vector<int>& ports, int* port, std::string* error);

/// One attempt at each address of host, on each port. Invalid when none answers; `tried` gets "address:port:
/// why".
struct Connection {
  Fd fd;
  std::string address;  ///< that answered, numeric
  int port = 0;
};
std::vector<std::string> resolve(const std::string& host, std::string* error);
Connection connect_once(const std::string& address, int port, SteadyTime deadline, std::string* error);

std::string peer_address(int fd);   ///< numeric, without the port
std::string local_address(int fd);  ///< numeric, without the port
bool is_loopback(const std::string& address);

void set_nonblocking(int fd);
std::string host_name();

}  // namespace ltrain
