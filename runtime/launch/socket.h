// TCP sockets of the control channel: owned descriptors, listening, connecting with every address of a name.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "kernels/base/fd.h"

namespace ltrain {

using SteadyTime = std::chrono::steady_clock::time_point;
inline SteadyTime steady_now() { return std::chrono::steady_clock::now(); }
inline SteadyTime after(double seconds, SteadyTime from = steady_now()) {
  return from + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                    std::chrono::duration<double>(seconds));
}
inline double seconds_between(SteadyTime a, SteadyTime b) {
  return std::chrono::duration<double>(b - a).count();
}
/// For poll(): whole milliseconds left, rounded up, not negative.
int poll_timeout(SteadyTime deadline);

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
