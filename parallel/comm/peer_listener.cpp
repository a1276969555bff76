#include "parallel/comm/peer_listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/printable.h"
#include "base/progress.h"
#include "base/secret.h"
#include "parallel/comm/socket.h"

namespace ltrain {
namespace {

constexpr size_t kMaxKeyBytes = 4096;
// a connection that does not show the secret within this time is dropped
constexpr double kStrangerSeconds = 5;
constexpr size_t kMaxStrangers = 256;
constexpr char kHelloMagic[8] = {'L', 'T', 'p', 'e', 'e', 'r', '1', 'c'};
constexpr char kWelcomeMagic[8] = {'L', 'T', 'p', 'e', 'e', 'r', '1', 's'};

/// Greeting of a connecting rank, followed by the key.
struct Hello {
  char magic[8];
  char secret[kSecretBytes];
  uint32_t from, key_bytes;
};
/// Answer to the greeting. Data of both sides follow.
struct Welcome {
  char magic[8];
  char secret[kSecretBytes];
};

std::vector<SocketAddress> interface_addresses(const std::string& name, std::string* why) {
  std::vector<SocketAddress> found = addresses_of_interface(name);
  if (found.empty()) *why = "there is none of that name with an address";
  return found;
}

}  // namespace

class PeerListener::Impl {
 public:
  Impl(const std::string& address, const std::string& interface) {
    std::string why = "it has no address";
    for (const SocketAddress& a :
         interface.empty() ? addresses_of_name(address, &why) : interface_addresses(interface, &why))
      if (listen(a, &why)) break;
    if (!listener_.valid() && interface.empty())
      fail(ExitCode::usage, "cannot listen for other ranks on address {}: {}", address, why);
    if (!listener_.valid())
      fail(ExitCode::usage, "cannot listen for other ranks on interface {} (launch.interface): {}", interface,
           why);
    wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.valid()) fail_system("eventfd", errno, ExitCode::internal);
    thread_ = std::thread([this] { loop(); });
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }

  std::string published() const { return fmt::format("{} {} {}", address_, port_, secrets_.text()); }

  Fd accept(const std::string& key, int from, double seconds) {
    std::unique_lock lock(mutex_);
    const std::pair<std::string, int> who(key, from);
    if (!changed_.wait_until(lock, after(seconds), [&] { return arrived_.contains(who); })) return {};
    Fd fd = std::move(arrived_.at(who));
    arrived_.erase(who);
    return fd;
  }

  std::string address_;

 private:
  struct Stranger {
    Fd fd;
    SteadyTime until;
    std::string bytes;
  };

  bool listen(SocketAddress a, std::string* why) {
    a.set_port(0);
    listener_ = listen_at(a, &port_);
    if (!listener_.valid() && (errno == EMFILE || errno == ENFILE))
      fail_system("a socket for other ranks", errno, ExitCode::internal);
    if (!listener_.valid()) *why = std::strerror(errno);
    address_ = a.text();
    return listener_.valid();
  }

  void loop() {
    std::list<Stranger> strangers;
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      auto wake = SteadyTime::max();
      for (const Stranger& s : strangers) {
        polled.push_back({s.fd.get(), POLLIN, 0});
        wake = std::min(wake, s.until);
      }
      ::poll(polled.data(), polled.size(), strangers.empty() ? -1 : poll_timeout(wake));
      size_t at = 2;
      const auto now = steady_now();
      for (auto s = strangers.begin(); s != strangers.end(); ++at) {
        const bool gone = (polled[at].revents && !hear(*s)) || s->until < now;
        s = gone ? strangers.erase(s) : std::next(s);
      }
      if (polled[1].revents) accept_all(strangers, now);
      lock.lock();
    }
  }

  void accept_all(std::list<Stranger>& strangers, SteadyTime now) {
    while (true) {
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd.valid()) {
        // No descriptor is left: the connection stays in the queue, and poll() would not block.
        if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return;
      }
      send_at_once(fd);
      if (strangers.size() >= kMaxStrangers) strangers.pop_front();
      strangers.push_back({std::move(fd), after(kStrangerSeconds, now), ""});
    }
  }

  /// Returns false after the connection was handed to a rank, or dropped. Reads exactly the greeting: later
  /// bytes belong to the rank.
  bool hear(Stranger& s) {
    while (true) {
      size_t want = sizeof(Hello);
      if (s.bytes.size() >= sizeof(Hello)) {
        Hello hello;
        std::memcpy(&hello, s.bytes.data(), sizeof(hello));
        if (std::memcmp(hello.magic, kHelloMagic, sizeof(kHelloMagic)) != 0 ||
            !equal_secrets({hello.secret, kSecretBytes}, secrets_.client) || hello.key_bytes > kMaxKeyBytes)
          return false;
        want += hello.key_bytes;
        if (s.bytes.size() == want) {
          welcome(std::move(s.fd), s.bytes.substr(sizeof(Hello)), static_cast<int>(hello.from));
          return false;
        }
      }
      char buffer[1024];
      const ssize_t n = ::recv(s.fd.get(), buffer, std::min(sizeof(buffer), want - s.bytes.size()), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return true;
      if (n <= 0) return false;
      s.bytes.append(buffer, static_cast<size_t>(n));
    }
  }

  void welcome(Fd fd, std::string key, int from) {
    Welcome w;
    std::memcpy(w.magic, kWelcomeMagic, sizeof(w.magic));
    std::memcpy(w.secret, secrets_.server.data(), kSecretBytes);
    if (::send(fd.get(), &w, sizeof(w), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(w))) return;
    note_progress();
    std::lock_guard lock(mutex_);
    arrived_.insert_or_assign({std::move(key), from},
                              std::move(fd));  // if a rank tries again, the last connection counts
    changed_.notify_all();
  }

  Fd listener_, wake_;
  int port_ = 0;
  const SecretPair secrets_ = SecretPair::make();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::string, int>, Fd> arrived_;
  bool stopping_ = false;
  std::thread thread_;
};

void check_interface(const std::string& name) {
  std::string why;
  if (interface_addresses(name, &why).empty())
    fail(ExitCode::usage, "launch.interface = {}: {} on this host; `ip address` lists them", printable(name),
         why);
}

PeerListener::PeerListener(const std::string& address, const std::string& interface)
    : impl_(std::make_unique<Impl>(address, interface)) {}
PeerListener::~PeerListener() = default;
const std::string& PeerListener::address() const { return impl_->address_; }
std::string PeerListener::published() const { return impl_->published(); }
Fd PeerListener::accept(const std::string& key, int from, double seconds) {
  return impl_->accept(key, from, seconds);
}

namespace {

/// One attempt. `retry`: true if another attempt may succeed.
Fd try_peer(const SocketAddress& address, const std::string& hello, const SecretPair& secrets,
            SteadyTime deadline, std::string* why, bool* retry) {
  Fd fd = open_socket(address);
  if (!fd.valid()) fail_system("a socket to another rank", errno, ExitCode::rank_lost);
  *retry = true;
  if (const int error = connect_to(fd, address, deadline)) {
    *why = std::strerror(error);
    return {};
  }
  send_at_once(fd);
  if (::send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(hello.size())) {
    *why = std::strerror(errno);
    return {};
  }
  Welcome w;
  for (size_t have = 0; have < sizeof(w);) {
    pollfd p{fd.get(), POLLIN, 0};
    if (::poll(&p, 1, poll_timeout(deadline)) <= 0) {
      *why = "no answer";
      return {};
    }
    const ssize_t n = ::recv(fd.get(), reinterpret_cast<char*>(&w) + have, sizeof(w) - have, 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) {
      *why = "it closed the connection";
      return {};
    }
    have += static_cast<size_t>(n);
  }
  if (std::memcmp(w.magic, kWelcomeMagic, sizeof(kWelcomeMagic)) != 0 ||
      !equal_secrets({w.secret, kSecretBytes}, secrets.server)) {
    *why = "another program listens there";
    *retry = false;
    return {};
  }
  return fd;
}

}  // namespace

Fd connect_to_peer(const std::string& published, const std::string& key, int from, double seconds,
                   std::string* why) {
  std::istringstream in(published);
  std::string address, secret;
  int port = 0;
  *why = "it published no address";
  if (!(in >> address >> port >> secret) || port < 1 || port > 65535 || key.size() > kMaxKeyBytes) return {};
  const std::optional<SecretPair> secrets = SecretPair::parse(secret);
  const std::optional<SocketAddress> a = SocketAddress::parse(address, port);
  if (!secrets || !a) return {};
  Hello hello{};
  std::memcpy(hello.magic, kHelloMagic, sizeof(hello.magic));
  std::memcpy(hello.secret, secrets->client.data(), kSecretBytes);
  hello.from = static_cast<uint32_t>(from), hello.key_bytes = static_cast<uint32_t>(key.size());
  const std::string bytes = std::string(reinterpret_cast<const char*>(&hello), sizeof(hello)) + key;
  const auto deadline = after(seconds);
  double pause = 0.01;
  while (true) {
    bool retry = false;
    std::string reason;
    Fd fd = try_peer(*a, bytes, *secrets, deadline, &reason, &retry);
    if (fd.valid()) {
      note_progress();
      return fd;
    }
    *why = fmt::format("{} port {}: {}", address, port, reason);
    if (!retry || steady_now() >= deadline) return {};
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    pause = std::min(1.0, 1.5 * pause);
  }
}

namespace {
std::string address_key(const std::string& key, int rank) { return fmt::format("{}/address/{}", key, rank); }
}  // namespace

void publish_peer(const PeerListener& listener, KeyValueStore& store, const std::string& key, int rank) {
  store.set(address_key(key, rank), listener.published());
}

Fd meet_peer(PeerListener& listener, KeyValueStore& store, const std::string& group, const std::string& key,
             int rank, int peer, const PeerWaits& waits) {
  std::string why = fmt::format("it did not come to {} within {:g} s", listener.address(), waits.peer);
  Fd fd = rank < peer
              ? listener.accept(key, peer, waits.peer)
              : connect_to_peer(store.get(address_key(key, peer), waits.peer), key, rank, waits.reach, &why);
  if (!fd.valid())
    fail(ExitCode::rank_lost, "group \"{}\": rank {} cannot connect to rank {}: {}", group, rank, peer, why);
  return fd;
}

}  // namespace ltrain
