#include "parallel/shm/handshake.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/secret.h"

namespace ltrain::shm {
namespace {

constexpr int kMaxDescriptors = 2 * kMaxRanks;
constexpr double kStrangerSeconds = 5;  // a silent connection is dropped after this time
constexpr size_t kMaxStrangers = 64;

/// Greeting of a rank, together with the reading end of its pipe.
struct Hello {
  char magic[8];
  char secret[kSecretBytes];
  uint32_t rank, ranks;
};
/// Answer of rank 0, together with the memory file and all other ranks' reading ends, in rank order.
struct Welcome {
  char magic[8];
  char secret[kSecretBytes];
  uint32_t ranks, unused;
};
constexpr char kHelloMagic[8] = {'L', 'T', 's', 'h', 'm', '1', 'c', 0};
constexpr char kWelcomeMagic[8] = {'L', 'T', 's', 'h', 'm', '1', 's', 0};

bool same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

template <class T>
bool send_with(int socket, const T& message, const std::vector<int>& descriptors) {
  iovec part{const_cast<T*>(&message), sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr m{};
  m.msg_iov = &part, m.msg_iovlen = 1;
  m.msg_control = control, m.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size() * sizeof(int));
  return ::sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(message));
}

/// Receives one message of exactly the size of T. If it is invalid, all received descriptors are closed.
template <class T>
bool receive_with(int socket, T* message, std::vector<Fd>* descriptors) {
  iovec part{message, sizeof(*message)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr m{};
  m.msg_iov = &part, m.msg_iovlen = 1;
  m.msg_control = control, m.msg_controllen = sizeof(control);
  const ssize_t n = ::recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return false;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      descriptors->emplace_back(fd);
    }
  }
  return n == static_cast<ssize_t>(sizeof(*message)) && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
}

bool is_pipe(const Fd& fd) {
  struct stat s {};
  return ::fstat(fd.get(), &s) == 0 && S_ISFIFO(s.st_mode);
}

struct Life {
  Fd reading, writing;
};
Life new_life() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_system("a pipe for a group of ranks", errno, ExitCode::internal);
  return {Fd(ends[0]), Fd(ends[1])};
}

std::string join_ranks(const std::vector<int>& list) {
  std::string out;
  for (int r : list) out += fmt::format("{}{}", out.empty() ? "" : ", ", r);
  return out;
}

/// Rank 0's side.
class Host {
 public:
  Host(KeyValueStore& store, const std::string& key, const std::string& group, const Layout& layout,
       double timeout)
      : group_(group), layout_(layout), timeout_(timeout), members_(static_cast<size_t>(layout.ranks)) {
    listener_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    socklen_t size = sizeof(name);
    // Without a name, the kernel chooses a free abstract one.
    if (!listener_.valid() ||
        ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&name), sizeof(sa_family_t)) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&name), &size) != 0 ||
        ::listen(listener_.get(), layout.ranks + static_cast<int>(kMaxStrangers)) != 0)
      fail(ExitCode::usage,
           "group \"{}\": no unix socket for shared memory ({}); LTRAIN_TRANSPORT=gloo "
           "does without",
           group, std::strerror(errno));
    store.set(key, to_hex({name.sun_path, size - offsetof(sockaddr_un, sun_path)}) + " " + secrets_.text());
  }

  Membership meet() {
    gather();
    Membership m;
    m.memory = create_memory(layout_);
    Life own = new_life();
    for (int r = 1; r < layout_.ranks; ++r) welcome(r, m.memory, own.reading);
    m.own_life = std::move(own.writing);
    m.others_life.emplace_back();
    for (int r = 1; r < layout_.ranks; ++r) m.others_life.push_back(std::move(members_[r].life));
    return m;
  }

 private:
  struct Member {
    Fd connection, life;
  };
  struct Stranger {
    Fd connection;
    SteadyTime until;
  };

  void gather() {
    const SteadyTime deadline = after(timeout_);
    for (int missing = layout_.ranks - 1; missing > 0;) {
      std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
      auto wake = deadline;
      for (const Stranger& s : strangers_) {
        polled.push_back({s.connection.get(), POLLIN, 0});
        wake = std::min(wake, s.until);
      }
      ::poll(polled.data(), polled.size(), poll_timeout(wake));
      for (size_t i = 1; i < polled.size(); ++i)
        if (polled[i].revents) {
          missing -= hear(strangers_[i - 1]);
          strangers_[i - 1].connection.reset();
        }
      const auto now = steady_now();
      std::erase_if(strangers_, [&](const Stranger& s) { return !s.connection.valid() || s.until < now; });
      if (polled[0].revents) accept_all(now);
      if (missing > 0 && now >= deadline) {
        std::vector<int> absent;
        for (int r = 1; r < layout_.ranks; ++r)
          if (!members_[r].connection.valid()) absent.push_back(r);
        fail(ExitCode::rank_lost,
             "group \"{}\": rank{} {} did not come to the shared memory of rank 0 within {:g} s", group_,
             absent.size() == 1 ? "" : "s", join_ranks(absent), timeout_);
      }
    }
  }

  void accept_all(SteadyTime now) {
    while (true) {
      Fd c(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!c.valid()) return;
      if (!same_user(c.get())) continue;
      if (strangers_.size() >= kMaxStrangers + members_.size()) strangers_.erase(strangers_.begin());
      strangers_.push_back({std::move(c), after(kStrangerSeconds, now)});
    }
  }

  /// Returns 1 for a missing rank; a stranger is dropped without an answer.
  int hear(Stranger& s) {
    Hello hello{};
    std::vector<Fd> descriptors;
    if (!receive_with(s.connection.get(), &hello, &descriptors)) return 0;
    if (std::memcmp(hello.magic, kHelloMagic, sizeof(kHelloMagic)) != 0 ||
        !equal_secrets({hello.secret, kSecretBytes}, secrets_.client) ||
        hello.ranks != static_cast<uint32_t>(layout_.ranks) || hello.rank < 1 || hello.rank >= hello.ranks ||
        descriptors.size() != 1 || !is_pipe(descriptors[0]))
      return 0;
    Member& m = members_[hello.rank];
    if (m.connection.valid()) return 0;
    m = {std::move(s.connection), std::move(descriptors[0])};
    return 1;
  }

  void welcome(int rank, const Fd& memory, const Fd& own_life) {
    Welcome w{};
    std::memcpy(w.magic, kWelcomeMagic, sizeof(w.magic));
    std::memcpy(w.secret, secrets_.server.data(), kSecretBytes);
    w.ranks = static_cast<uint32_t>(layout_.ranks);
    std::vector<int> descriptors{memory.get(), own_life.get()};
    for (int r = 1; r < layout_.ranks; ++r)
      if (r != rank) descriptors.push_back(members_[r].life.get());
    if (!send_with(members_[rank].connection.get(), w, descriptors))
      fail(ExitCode::rank_lost, "group \"{}\": rank {} is gone before the group was made ({})", group_, rank,
           std::strerror(errno));
  }

  const std::string& group_;
  const Layout& layout_;
  const double timeout_;
  const SecretPair secrets_ = SecretPair::make();
  Fd listener_;
  std::vector<Member> members_;
  std::vector<Stranger> strangers_;
};

/// Side of the other ranks.
class Guest {
 public:
  Guest(const std::string& group, int rank, const Layout& layout, double timeout)
      : group_(group), rank_(rank), layout_(layout), timeout_(timeout), deadline_(after(timeout)) {}

  Membership meet(const std::string& published) {
    const size_t space = std::min(published.find(' '), published.size());
    const std::optional<std::string> name = from_hex(published.substr(0, space), 100);
    const auto secrets = SecretPair::parse(published.substr(std::min(space + 1, published.size())));
    if (!name || name->empty() || (*name)[0] != 0 || !secrets)
      fail(ExitCode::rank_lost, "group \"{}\": rank 0 published no address of shared memory", group_);
    const Fd connection = connect(*name);
    if (!same_user(connection.get())) distrust("belongs to another user");
    Life own = new_life();
    Hello hello{};
    std::memcpy(hello.magic, kHelloMagic, sizeof(hello.magic));
    std::memcpy(hello.secret, secrets->client.data(), kSecretBytes);
    hello.rank = static_cast<uint32_t>(rank_), hello.ranks = static_cast<uint32_t>(layout_.ranks);
    if (!send_with(connection.get(), hello, {own.reading.get()})) distrust("does not listen");
    pollfd p{connection.get(), POLLIN, 0};
    while (::poll(&p, 1, poll_timeout(deadline_)) <= 0)
      if (steady_now() >= deadline_)
        fail(ExitCode::rank_lost, "group \"{}\": rank {} waited {:g} s for rank 0's shared memory", group_,
             rank_, timeout_);
    Welcome w{};
    std::vector<Fd> descriptors;
    if (!receive_with(connection.get(), &w, &descriptors))
      distrust("closed the connection or is another program");
    if (std::memcmp(w.magic, kWelcomeMagic, sizeof(w.magic)) != 0 ||
        !equal_secrets({w.secret, kSecretBytes}, secrets->server))
      distrust("does not know the job's secret");
    if (w.ranks != hello.ranks || descriptors.size() != static_cast<size_t>(layout_.ranks) ||
        !std::all_of(descriptors.begin() + 1, descriptors.end(), is_pipe))
      distrust("sent something else than shared memory");
    Membership m;
    m.memory = std::move(descriptors[0]);
    m.own_life = std::move(own.writing);
    size_t next = 1;
    for (int r = 0; r < layout_.ranks; ++r)
      m.others_life.push_back(r == rank_ ? Fd() : std::move(descriptors[next++]));
    return m;
  }

 private:
  [[noreturn]] void distrust(const char* why) {
    fail(ExitCode::rank_lost, "group \"{}\": whoever listens at rank 0's unix socket {}", group_, why);
  }

  Fd connect(const std::string& name) {
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    std::memcpy(a.sun_path, name.data(), name.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    while (true) {
      Fd s(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (s.valid() && ::connect(s.get(), reinterpret_cast<sockaddr*>(&a), size) == 0) return s;
      const int error = errno;
      if (error != EAGAIN || steady_now() >= deadline_)  // EAGAIN: too many connect at once
        fail(ExitCode::rank_lost,
             "group \"{}\": rank {} cannot reach rank 0's unix socket ({}) although both seem to be on one "
             "host; "
             "LTRAIN_TRANSPORT=gloo does without shared memory",
             group_, rank_, std::strerror(error));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const std::string& group_;
  const int rank_;
  const Layout& layout_;
  const double timeout_;
  const SteadyTime deadline_;
};

}  // namespace

Membership meet(KeyValueStore& store, const std::string& key, const std::string& group, int rank,
                const Layout& layout, double timeout_seconds) {
  if (rank == 0) return Host(store, key, group, layout, timeout_seconds).meet();
  const std::string published = store.get(key, timeout_seconds);
  return Guest(group, rank, layout, timeout_seconds).meet(published);
}

}  // namespace ltrain::shm
