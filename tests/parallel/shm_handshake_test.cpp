// Whoever comes to a group's socket, or poses as its rank 0, is not believed.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/secret.h"
#include "parallel/shm/communicator_shm.h"
#include "parallel/shm/handshake.h"
#include "tests/parallel/group_support.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Matchers::Contains;

namespace {

/// Entry that rank 0 leaves in the store.
struct Published {
  std::string name, client_secret, server_secret;
  explicit Published(const std::string& text) {
    const size_t space = text.find(' ');
    name = from_hex(text.substr(0, space), 100).value();
    const SecretPair secrets = SecretPair::parse(text.substr(space + 1)).value();
    client_secret = secrets.client, server_secret = secrets.server;
  }
};

Fd connect_to(const std::string& name) {
  Fd s(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::memcpy(a.sun_path, name.data(), name.size());
  if (::connect(s.get(), reinterpret_cast<sockaddr*>(&a),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())) != 0)
    throw std::runtime_error("connect");
  return s;
}

void send_bytes(int socket, const std::string& bytes, const std::vector<int>& descriptors) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr m{};
  m.msg_iov = &part, m.msg_iovlen = 1;
  if (!descriptors.empty()) {
    m.msg_control = control, m.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size() * sizeof(int));
  }
  ::sendmsg(socket, &m, MSG_NOSIGNAL);
}

std::string number(uint32_t v) { return {reinterpret_cast<const char*>(&v), 4}; }
std::string hello(const std::string& secret, uint32_t rank, uint32_t ranks) {
  return std::string("LTshm1c\0", 8) + secret + number(rank) + number(ranks);
}
std::string welcome(const std::string& secret, uint32_t ranks) {
  return std::string("LTshm1s\0", 8) + secret + number(ranks) + number(0);
}

/// True when the other side has closed the connection, within a second.
bool is_dropped(const Fd& s) {
  timeval wait{1, 0};
  ::setsockopt(s.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
  char byte;
  const ssize_t n = ::recv(s.get(), &byte, 1, 0);
  return n == 0 || (n < 0 && errno == ECONNRESET);
}

struct Pipe {
  int ends[2];
  Pipe() { REQUIRE(::pipe2(ends, O_CLOEXEC) == 0); }
  ~Pipe() { ::close(ends[0]), ::close(ends[1]); }
};

const shm::Layout kLayout{2, 4096, 4096};
const ShmOptions kOptions{5, 3, 4096, 4096, -1};

/// Rank 1 joins with what `rank_0` publishes and answers; what it throws.
std::string join_at(const std::function<void(KeyValueStore&)>& rank_0) {
  auto store = make_memory_store();
  std::thread other([&] { rank_0(*store); });
  std::string error;
  try {
    make_shm_group(store, "g", 1, 2, "g", Axis::data, kOptions);
  } catch (const Error& e) {
    error = e.what();
  }
  other.join();
  return error;
}

/// A rank 0 that answers the hello with `answer` and these descriptors.
std::string join_at_false_rank_0(const std::string& secret_shown, uint32_t ranks,
                                 const std::vector<int>& descriptors) {
  return join_at([&](KeyValueStore& store) {
    const Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    socklen_t size = sizeof(a);
    ::bind(listener.get(), reinterpret_cast<sockaddr*>(&a), sizeof(sa_family_t));
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&a), &size);
    ::listen(listener.get(), 4);
    store.set("g", to_hex({a.sun_path, size - offsetof(sockaddr_un, sun_path)}) + " " +
                       to_hex("client's secret.server's secret."));
    const Fd c(::accept(listener.get(), nullptr, nullptr));
    char buffer[256];
    [[maybe_unused]] const ssize_t n = ::recv(c.get(), buffer, sizeof(buffer), 0);
    send_bytes(c.get(), welcome(secret_shown, ranks), descriptors);
    ::recv(c.get(), buffer, sizeof(buffer), 0);  // until the rank has gone
  });
}

}  // namespace

TEST_CASE("strangers at the socket of a group are dropped, and the group is made", "[shm]") {
  auto store = make_memory_store();
  std::unique_ptr<Communicator> group[2];
  std::thread rank_0([&] { group[0] = make_shm_group(store, "g", 0, 2, "g", Axis::data, kOptions); });
  const Published p(store->get("g", 5));
  REQUIRE(p.name.size() > 1);
  REQUIRE(p.name[0] == 0);  // abstract: no file
  const Fd silent = connect_to(p.name);
  Pipe life;
  const std::string wrong(16, 'x');
  struct Attempt {
    std::string bytes;
    std::vector<int> descriptors;
  };
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (const Attempt& a : std::vector<Attempt>{{hello(wrong, 1, 2), {life.ends[0]}},
                                               {hello(p.server_secret, 1, 2), {life.ends[0]}},
                                               {hello(p.client_secret, 2, 2), {life.ends[0]}},
                                               {hello(p.client_secret, 0, 2), {life.ends[0]}},
                                               {hello(p.client_secret, 1, 3), {life.ends[0]}},
                                               {hello(p.client_secret, 1, 2), {}},
                                               {hello(p.client_secret, 1, 2), {file}},
                                               {hello(p.client_secret, 1, 2), {life.ends[0], life.ends[0]}},
                                               {hello(p.client_secret, 1, 2) + "x", {life.ends[0]}},
                                               {"GET / HTTP/1.1\r\n\r\n", {}},
                                               {std::string(100000, 'a'), {}}}) {
    INFO(a.bytes.substr(0, 60));
    const Fd s = connect_to(p.name);
    send_bytes(s.get(), a.bytes, a.descriptors);
    CHECK(is_dropped(s));
  }
  ::close(file);
  group[1] = make_shm_group(store, "g", 1, 2, "g", Axis::data, kOptions);
  rank_0.join();
  std::thread other([&] { group[1]->barrier(*make_inline_stream("s")); });
  group[0]->barrier(*make_inline_stream("s"));
  other.join();
}

TEST_CASE("negative control: a stranger that knows the secret and says it right is taken for a rank",
          "[shm]") {
  auto store = make_memory_store();
  std::string error;
  shm::Membership members;
  std::thread rank_0([&] { members = shm::meet(*store, "g", "g", 0, kLayout, 5); });
  const Published p(store->get("g", 5));
  const Fd s = connect_to(p.name);
  Pipe life;
  send_bytes(s.get(), hello(p.client_secret, 1, 2), {life.ends[0]});
  rank_0.join();
  CHECK(members.memory.valid());
  CHECK(members.others_life.at(1).valid());
}

TEST_CASE("another user is dropped, whatever it knows", "[shm]") {
  if (::geteuid() != 0) {
    skip_test("another user is dropped, whatever it knows: needs root to become another user");
    return;
  }
  auto store = make_memory_store();
  std::unique_ptr<Communicator> group[2];
  std::thread rank_0([&] { group[0] = make_shm_group(store, "g", 0, 2, "g", Axis::data, kOptions); });
  const Published p(store->get("g", 5));
  Pipe life;
  for (const bool other_user : {true}) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (other_user && ::setuid(65534) != 0) ::_exit(3);
      const Fd s = connect_to(p.name);
      send_bytes(s.get(), hello(p.client_secret, 1, 2), {life.ends[0]});
      ::_exit(is_dropped(s) ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  group[1] = make_shm_group(store, "g", 1, 2, "g", Axis::data, kOptions);
  rank_0.join();
}

TEST_CASE("a rank 0 that is none is refused, and what it sends is not mapped", "[shm]") {
  const std::string secret = "server's secret.";
  Pipe life;
  const Fd right = shm::create_memory(kLayout);
  // Negative control: with the right answer the rank goes in.
  CHECK(join_at_false_rank_0(secret, 2, {right.get(), life.ends[0]}) == "");

  CHECK_THAT(join_at_false_rank_0("client's secret.", 2, {right.get(), life.ends[0]}),
             Contains("does not know the job's secret"));
  CHECK_THAT(join_at_false_rank_0(secret, 3, {right.get(), life.ends[0]}),
             Contains("something else than shared memory"));
  CHECK_THAT(join_at_false_rank_0(secret, 2, {right.get()}), Contains("something else than shared memory"));
  CHECK_THAT(join_at_false_rank_0(secret, 2, {right.get(), right.get()}),
             Contains("something else than shared memory"));
  CHECK_THAT(join_at_false_rank_0(secret, 2, {life.ends[0], life.ends[0]}),
             Contains("no sealed memory file"));

  // A memory file of the right size that could shrink under its readers.
  const Fd loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(loose.get(), kLayout.total_bytes()) == 0);
  CHECK_THAT(join_at_false_rank_0(secret, 2, {loose.get(), life.ends[0]}), Contains("no sealed memory file"));
  REQUIRE(::fcntl(loose.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0);
  CHECK_THAT(join_at_false_rank_0(secret, 2, {loose.get(), life.ends[0]}), Contains("another layout"));
  const Fd large = shm::create_memory({2, 8192, 4096});
  CHECK_THAT(join_at_false_rank_0(secret, 2, {large.get(), life.ends[0]}),
             Contains(fmt::format("a memory file of {} bytes, a group of 2 ranks has {}",
                                  shm::Layout{2, 8192, 4096}.total_bytes(), kLayout.total_bytes())));

  for (const char* nonsense : {"", "zz", "00", "0041 00", "4141 00000000", "00410 "})
    CHECK_THAT(join_at([&](KeyValueStore& store) { store.set("g", nonsense); }),
               Contains("rank 0 published no address"));
  CHECK_THAT(join_at([&](KeyValueStore& store) {
               store.set("g", to_hex(std::string("\0nobody-listens-here", 20)) + " " + std::string(64, '0'));
             }),
             Contains("cannot reach rank 0's unix socket (Connection refused)") &&
                 Contains("LTRAIN_TRANSPORT=gloo"));
}

TEST_CASE("a rank that does not come is named at the deadline", "[shm]") {
  auto store = make_memory_store();
  ShmOptions o = kOptions;
  o.connect_timeout_seconds = 0.3;
  CHECK_THROWS_WITH(make_shm_group(store, "g", 0, 3, "group name", Axis::data, o),
                    Contains("group \"group name\": ranks 1, 2 did not come") && Contains("within 0.3 s"));
}
