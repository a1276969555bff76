// A port for a job that the test starts.
#pragma once
#include <string>

#include "parallel/comm/socket.h"

namespace ltrain::test {

/// A TCP port of the loopback address that nobody has now.
inline int free_port() {
  int port = 0;
  std::string error;
  listen_on("127.0.0.1", {0}, &port, &error);
  return port;
}

}  // namespace ltrain::test
