// Addresses of sockets, and what happens when there is no socket to have.
#include "parallel/comm/socket.h"

#include <netinet/in.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/error.h"
#include "parallel/comm/peer_listener.h"

using namespace ltrain;
using Catch::Matchers::Contains;

namespace {

/// While it lives, this process gets no descriptor more.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 3;
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

/// Returns whether rank `rank` connected to `listener`, and whether it was accepted. Checks stay with the
/// caller, because those of Catch2 may not run on two threads at once.
std::pair<bool, bool> connect_both(PeerListener& listener, int rank) {
  bool connected = false;
  std::thread comes([&] {
    std::string why;
    connected = connect_to_peer(listener.published(), "k", rank, 10, &why).valid();
  });
  const bool accepted = listener.accept("k", rank, 10).valid();
  comes.join();
  return {connected, accepted};
}

}  // namespace

TEST_CASE("a numeric address comes back as it was, with the interface of one of a link") {
  for (const char* text : {"127.0.0.1", "10.1.2.3", "::1", "2001:db8::1", "fe80::1%lo"}) {
    INFO(text);
    const auto a = SocketAddress::parse(text, 29500);
    REQUIRE(a);
    CHECK(a->text() == text);
    CHECK(a->port() == 29500);
  }
  const auto of_link = SocketAddress::parse("fe80::1%lo", 1);
  REQUIRE(of_link->family() == AF_INET6);
  CHECK(reinterpret_cast<const sockaddr_in6*>(of_link->get())->sin6_scope_id != 0);
  CHECK(SocketAddress::parse("::ffff:10.1.2.3", 1)->text() == "10.1.2.3");
  for (const char* text :
       {"", "localhost", "10.1", "10.1.2.3.4", "1::2::3", "fe80::1%no-such-interface", "%lo"})
    CHECK_FALSE(SocketAddress::parse(text, 1));
}

TEST_CASE("an interface has its addresses, IPv4 first, and a rank listens there") {
  const auto found = addresses_of_interface("lo");
  REQUIRE_FALSE(found.empty());
  CHECK(found[0].text() == "127.0.0.1");
  CHECK(addresses_of_interface("no-such-interface").empty());
  PeerListener listener("", "lo");
  CHECK(listener.address() == "127.0.0.1");
  const auto [connected, accepted] = connect_both(listener, 3);
  CHECK(connected);
  CHECK(accepted);
}

TEST_CASE("where no descriptor is left, listening and connecting say so") {
  PeerListener listener("127.0.0.1");
  const std::string published = listener.published();
  int port = 0, error = 0;
  std::string why, listening, connecting;
  Fd fd;
  // UndefinedBehaviorSanitizer asks for a pipe when it first sees the type of an object, and takes a wrong
  // type for the answer when it gets none. It sees the types of what follows here, while there are
  // descriptors.
  {
    const auto [connected, accepted] = connect_both(listener, 1);
    CHECK(connected);
    CHECK(accepted);
    try {
      fail(ExitCode::data, "seen");
    } catch (const Error& e) {
      REQUIRE(e.code() == ExitCode::data);
      REQUIRE(std::string(e.what()) == "seen");
    }
  }
  {
    const NoDescriptors none;
    fd = listen_on("127.0.0.1", {0}, &port, &why);
    error = errno;
    try {
      PeerListener another("127.0.0.1");
    } catch (const Error& e) {
      listening = e.what();
    }
    try {
      connect_to_peer(published, "k", 1, 5, &why);
    } catch (const Error& e) {
      connecting = e.what();
    }
  }
  CHECK_FALSE(fd.valid());
  CHECK(error == EMFILE);
  CHECK_THAT(listening, Contains("a socket for other ranks") && Contains("ulimit -n"));
  CHECK_THAT(connecting, Contains("a socket to another rank") && Contains("ulimit -n"));
}
