#include "runtime/launch/coordinator.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "base/limits.h"
#include "base/printable.h"
#include "parallel/comm/socket.h"
#include "runtime/launch/job_key.h"
#include "runtime/launch/rank_order.h"

namespace ltrain {
namespace {
constexpr size_t kMostHostBytes = 255;  // host name in messages
constexpr int kMostStrangers = 256;     // connections without a proof, in addition to one for each rank
}  // namespace

class Coordinator::Server {
 public:
  explicit Server(CoordinatorOptions options)
      : options_(std::move(options)),
        settings_(settings_of_job(options_.world_size, options_.settings)),
        key_(options_.token, settings_),
        job_(options_.world_size, options_.join_seconds,
             is_loopback(options_.address) ? host_name() : "unknown host", options_.least_joined),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        changed_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    std::string error;
    if (!wake_.valid() || !changed_.valid()) fail_system("eventfd", errno, ExitCode::internal);
    listener_ = listen_on(options_.address, options_.ports, &port_, &error);
    if (!listener_.valid() && (errno == EMFILE || errno == ENFILE))
      fail_system("a socket for the coordinator", errno, ExitCode::internal);
    if (!listener_.valid())
      fail(ExitCode::usage,
           "the coordinator cannot listen on {}: {}; another program uses the port: choose another one "
           "(MASTER_PORT or LTRAIN_COORDINATOR=host:port)",
           options_.address.empty() ? "this host" : options_.address, error);
    listens_at_ = fmt::format("port {} of host {}", port_, host_name());
    thread_ = std::thread([this] { loop(); });
  }

  ~Server() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    poke(wake_);
    thread_.join();
  }

  // ---- called from other threads ----

  void request_stop(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (!stop_reason_.empty()) return;
    stop_reason_ = reason;
    for (auto& [fd, c] : connections_)
      if (c.rank >= 0) queue(c, MessageWriter(MessageType::stop).text(reason).frame());
    poke(wake_);
  }

  void child_ended(int rank, bool by_signal, int code, const std::string& text) {
    std::lock_guard lock(mutex_);
    KnownRank& r = job_.rank(rank);
    r.process_gone = true;
    if (r.goodbye || (!by_signal && code == 0 && r.connection < 0 && !r.joined)) {
      // The child said goodbye, or a program that never was a rank ended successfully.
      if (!r.goodbye) r.goodbye = true, r.goodbye_code = ExitCode::done;
      if (by_signal || code != static_cast<int>(r.goodbye_code))
        job_.add_failure(Failure::Kind::dead, rank, ExitCode::rank_lost, "said goodbye, but " + text);
    } else {
      const bool ours =
          !by_signal && (code == 64 || code == 65 || code == 70 || code == 73 || code == 76 || code == 78);
      job_.add_failure(Failure::Kind::dead, rank, ours ? static_cast<ExitCode>(code) : ExitCode::rank_lost,
                       text);
    }
    poke(wake_);
    poke(changed_);
  }

  void child_stopped(int rank, int signal) {
    std::lock_guard lock(mutex_);
    job_.rank(rank).stopped_by = signal;
  }

  Verdict verdict() const {
    std::lock_guard lock(mutex_);
    return verdict_;
  }
  bool finished() const {
    std::lock_guard lock(mutex_);
    return std::all_of(job_.ranks().begin(), job_.ranks().end(), [&](const KnownRank& r) {
      return r.goodbye || r.process_gone || (verdict_.failed && r.connection < 0);
    });
  }
  ExitCode goodbye_code() const {
    std::lock_guard lock(mutex_);
    int code = 0;
    for (const KnownRank& r : job_.ranks()) code = std::max(code, static_cast<int>(r.goodbye_code));
    return static_cast<ExitCode>(code);
  }
  bool said_goodbye(int rank) const {
    std::lock_guard lock(mutex_);
    return job_.rank(rank).goodbye;
  }
  std::string host_of(int rank) const {
    std::lock_guard lock(mutex_);
    return job_.host(rank);
  }
  std::optional<std::string> value(const std::string& key) const {
    std::lock_guard lock(mutex_);
    const auto at = values_.find(key);
    return at == values_.end() ? std::nullopt : std::optional(at->second);
  }
  bool joined(int rank) const {
    std::lock_guard lock(mutex_);
    return job_.rank(rank).joined;
  }

  int port_ = 0;
  const CoordinatorOptions options_;

  void clear_changed() {
    uint64_t n;
    [[maybe_unused]] const ssize_t ignored = ::read(changed_.get(), &n, sizeof(n));
  }
  int changed_fd() const { return changed_.get(); }

 private:
  struct Connection {
    Fd fd;
    std::string address;
    int rank = -1;
    std::string greeting, answered;  // both greetings, until the proofs have arrived
    Kinship kinship = Kinship::none;
    SteadyTime opened = steady_now();
    FrameBuffer in;
    std::string out;
    bool trusted() const { return kinship == Kinship::same; }
  };
  static void poke(const Fd& fd) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(fd.get(), &one, sizeof(one));
  }
  void log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  // ---- the thread ----

  void loop() {
    SteadyTime last_turn = steady_now();
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      for (auto& [fd, c] : connections_)
        polled.push_back({fd, static_cast<short>(POLLIN | (c.out.empty() ? 0 : POLLOUT)), 0});
      const int timeout = poll_timeout(next_event());
      lock.unlock();
      const int ready = ::poll(polled.data(), polled.size(), timeout);
      lock.lock();
      if (ready < 0 && errno != EINTR) break;
      if (polled[1].revents) {
        uint64_t n;
        [[maybe_unused]] const ssize_t ignored = ::read(wake_.get(), &n, sizeof(n));
      }
      if (seconds_between(last_turn, steady_now()) > job_.bounds().silence / 2 && timeout < 2000)
        job_.forgive(steady_now());
      last_turn = steady_now();
      if (polled[0].revents) accept_all();
      for (size_t i = 2; i < polled.size(); ++i) {
        if (polled[i].revents & (POLLIN | POLLHUP | POLLERR)) read_from(polled[i].fd);
        if (connections_.contains(polled[i].fd) && (polled[i].revents & POLLOUT)) flush(polled[i].fd);
      }
      watch();
    }
    for (auto& [fd, c] : connections_) flush_out(c);
  }

  SteadyTime next_event() const {
    const SteadyTime t = after(job_.bounds().heartbeat);
    return job_.any_failure() && !verdict_.failed ? std::min(t, job_.settled()) : t;
  }

  void accept_all() {
    while (true) {
      const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        // No descriptor is left. The connection stays in the queue, so poll() would return at once.
        if (errno != EMFILE && errno != ENFILE) return;
        if (drop_idlest_stranger()) continue;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return;
      }
      Connection c;
      c.fd = Fd(fd);
      c.address = peer_address(fd);
      const auto strangers = std::count_if(connections_.begin(), connections_.end(),
                                           [](const auto& p) { return !p.second.trusted(); });
      // A new connection may be a rank, which proves itself at once. An older silent one is not a rank.
      if (strangers > kMostStrangers + options_.world_size) drop_idlest_stranger();
      connections_.emplace(fd, std::move(c));
    }
  }

  /// Closes the connection without a proof that has sent the least, and of these the oldest. Returns false if
  /// there is none.
  bool drop_idlest_stranger() {
    auto idlest = connections_.end();
    const auto idleness = [](Connection& c) {
      return std::tuple(!c.greeting.empty(), !c.in.bytes().empty(), c.opened);
    };
    for (auto it = connections_.begin(); it != connections_.end(); ++it)
      if (it->second.kinship == Kinship::none &&
          (idlest == connections_.end() || idleness(it->second) < idleness(idlest->second)))
        idlest = it;
    if (idlest == connections_.end()) return false;
    connections_.erase(idlest);
    return true;
  }

  void drop(int fd) {
    auto it = connections_.find(fd);
    if (it == connections_.end()) return;
    const int rank = it->second.rank;
    if (rank >= 0) {
      KnownRank& r = job_.rank(rank);
      r.connection = -1;
      if (!r.goodbye && !r.failed && !verdict_.failed)
        job_.add_failure(Failure::Kind::dead, rank, ExitCode::rank_lost,
                         "closed its connection without a goodbye: it died");
      poke(changed_);
    }
    connections_.erase(it);
  }

  void drop_stranger(int fd, const std::string& why) {
    const std::string address = connections_.at(fd).address;
    if (strangers_logged_.size() < 16 && strangers_logged_.insert(address).second)
      log(fmt::format("coordinator: dropped a connection from {}: {}", address, why));
    connections_.erase(fd);
  }

  void read_from(int fd) {
    auto it = connections_.find(fd);
    if (it == connections_.end()) return;
    char buffer[16384];
    while (true) {
      Connection& c = it->second;
      // Before the handshake succeeds, a connection is not trusted and gets no buffer.
      const size_t needed = c.kinship != Kinship::none ? 0
                            : c.greeting.empty()       ? kGreetingBytes
                                                       : kProofBytes;
      const size_t want = needed ? needed - c.in.bytes().size() : sizeof(buffer);
      const ssize_t n = ::recv(fd, buffer, want, 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n <= 0) {
        if (c.trusted())
          drop(fd);
        else
          connections_.erase(fd);
        return;
      }
      c.in.feed(buffer, static_cast<size_t>(n));
      if (needed) {
        if (!hear_handshake(fd, c, needed)) return;
        continue;
      }
      while (true) {
        bool bad = false;
        const auto message = c.in.next(&bad);
        if (!bad && !message) break;
        if (bad || !handle(fd, *message)) {
          log(fmt::format("coordinator: rank {} at {} sent a malformed message", c.rank, c.address));
          return drop(fd);
        }
        it = connections_.find(fd);
        if (it == connections_.end()) return;
      }
    }
  }

  /// Returns false if the connection is gone.
  bool hear_handshake(int fd, Connection& c, size_t needed) {
    std::string& got = c.in.bytes();
    if (c.greeting.empty()) {
      const size_t check = std::min(got.size(), kClientMagic.size());
      if (got.compare(0, check, kClientMagic, 0, check) != 0) {
        drop_stranger(fd, "it does not speak ltrain's protocol");
        return false;
      }
    }
    if (got.size() < needed) return true;
    if (c.greeting.empty()) {
      c.greeting = got;
      c.answered = JobKey::greeting(kServerMagic);
      queue(c, c.answered);
    } else {
      c.kinship = key_.judge(got, c.greeting, c.answered);
      if (c.kinship == Kinship::none) {
        drop_stranger(fd, "it belongs to another job (wrong token)");
        return false;
      }
      queue(c, key_.answer(c.kinship, c.greeting, c.answered));
    }
    got.clear();
    return true;
  }

  /// Stores a value, and sends it to the ranks that wait for it.
  void set_value(const std::string& key, const std::string& value) {
    values_[key] = value;
    for (int waiter : waiters_[key])
      if (auto w = connections_.find(waiter); w != connections_.end())
        queue(w->second, MessageWriter(MessageType::value).text(key).text(value).frame());
    waiters_.erase(key);
  }

  /// Tells all ranks to save and stop, because `rank` received a signal.
  void stop_ranks(int rank, const std::string& reason) {
    stop_reason_ = reason;
    log(fmt::format("rank {} received {}: all ranks save and stop", rank, reason));
    for (auto& [other, o] : connections_)
      if (o.rank >= 0) queue(o, MessageWriter(MessageType::stop).text(reason).frame());
  }

  /// Returns false if the message is invalid.
  bool handle(int fd, const Message& m) {
    Connection& c = connections_.at(fd);
    if (c.kinship == Kinship::other_recipe) return m.type == MessageType::differs && hear_difference(c, m);
    if (m.type == MessageType::hello) return join(c, m);
    if (c.rank < 0) return false;
    KnownRank& r = job_.rank(c.rank);
    r.last_heard = steady_now();
    MessageReader in(m);
    switch (m.type) {
      case MessageType::set: {
        const std::string key = in.text(), value = in.text();
        if (!in.ok()) return false;
        set_value(key, value);
        return true;
      }
      case MessageType::get: {
        const std::string key = in.text();
        if (!in.ok()) return false;
        if (auto v = values_.find(key); v != values_.end())
          queue(c, MessageWriter(MessageType::value).text(key).text(v->second).frame());
        else
          waiters_[key].push_back(fd);
        return true;
      }
      case MessageType::status: {
        auto status = read_status(m);
        if (!status) return false;
        r.status = std::move(status);
        r.status_at = steady_now();
        return true;
      }
      case MessageType::error: {
        const int64_t code = in.number();
        const std::string text = in.text();
        if (!in.ok() || code < 0 || code > 255) return false;
        queue(c, MessageWriter(MessageType::noted).frame());
        job_.add_failure(Failure::Kind::error, c.rank, static_cast<ExitCode>(code), text);
        return true;
      }
      case MessageType::goodbye: {
        const int64_t code = in.number();
        if (!in.ok() || code < 0 || code > 255) return false;
        r.goodbye = true;
        r.goodbye_code = static_cast<ExitCode>(code);
        queue(c, MessageWriter(MessageType::noted).frame());
        poke(changed_);
        return true;
      }
      case MessageType::signal: {
        const std::string reason = in.text();
        if (!in.ok()) return false;
        if (stop_reason_.empty()) stop_ranks(c.rank, reason);
        return true;
      }
      default:
        return false;
    }
  }

  /// Handles a rank of this job that searched in vain for another coordinator. The job ends, unless the rank
  /// number is taken: then the rank belongs to another job.
  bool hear_difference(Connection& c, const Message& m) {
    MessageReader in(m);
    const int64_t rank = in.number(), world = in.number();
    const std::string host = printable(in.text(), kMostHostBytes), settings = in.text();
    if (!in.ok() || rank < 0 || world < 1) return false;
    const std::string difference =
        first_difference(settings_, fmt::format("{} on host {}", options_.owner, host_name()), settings,
                         fmt::format("rank {} on host {}", rank, host));
    const std::string text = fmt::format(
        "its recipe is not the job's: {}; start all ranks with one recipe, or, where these are two jobs, "
        "give each a MASTER_PORT or an LTRAIN_TOKEN of its own",
        difference.empty() ? "the first 256 KiB agree" : difference);
    queue(c,
          MessageWriter(MessageType::refused).number(static_cast<int>(ExitCode::usage)).text(text).frame());
    if (rank >= options_.world_size || job_.rank(static_cast<int>(rank)).joined) {
      log(fmt::format("coordinator: refused rank {} on host {}, which is of another job: {}", rank, host,
                      text));
      return true;
    }
    job_.rank(static_cast<int>(rank)).host = host;
    job_.add_failure(Failure::Kind::error, static_cast<int>(rank), ExitCode::usage, text);
    return true;
  }

  bool join(Connection& c, const Message& m) {
    MessageReader in(m);
    const int64_t rank = in.number(), world = in.number();
    const std::string host = printable(in.text(), kMostHostBytes);
    const int64_t pid = in.number();
    const std::string identity = in.text(), switches = printable(in.text(), kMostHostBytes * 4);
    if (!in.ok() || c.rank >= 0) return false;
    auto refuse = [&](const std::string& why) {
      queue(c, MessageWriter(MessageType::refused)
                   .number(static_cast<int>(ExitCode::rank_lost))
                   .text(why)
                   .frame());
      log("coordinator: refused a rank: " + why);
      return true;
    };
    if (world != options_.world_size || rank < 0 || rank >= world)
      return refuse(fmt::format("rank {} of {} on host {} came to a job of {} ranks", rank, world, host,
                                options_.world_size));
    KnownRank& r = job_.rank(static_cast<int>(rank));
    if (r.absent)
      return refuse(fmt::format("rank {} on host {} came after the job had begun without it", rank, host));
    if (r.joined)
      return refuse(fmt::format("rank {} joined twice: process {} on host {}, and process {} on host {}",
                                rank, r.pid, r.host, pid, host));
    c.rank = static_cast<int>(rank);
    r.connection = c.fd.get();
    r.joined = true;
    r.host = host, r.pid = pid, r.identity = identity, r.address = c.address, r.switches = switches;
    r.own_address = local_address(c.fd.get());
    r.last_heard = steady_now();
    if (!stop_reason_.empty()) queue(c, MessageWriter(MessageType::stop).text(stop_reason_).frame());
    if (job_.all_joined()) welcome_all();
    return true;
  }

  /// Gives ranks numbers by distance. Keeps the launcher's if a rank is absent or failed, because messages
  /// have named it.
  void renumber() {
    std::vector<RankLocation> locations;
    for (const KnownRank& r : job_.ranks()) {
      if (r.absent || r.failed) return;
      locations.push_back({r.host, r.switches});
    }
    const std::vector<int> order = order_by_distance(locations, options_.parts);
    if (std::is_sorted(order.begin(), order.end())) return;
    std::vector<KnownRank> ranks;
    for (int launched : order) ranks.push_back(std::move(job_.rank(launched)));
    job_.ranks() = std::move(ranks);
    for (int rank = 0; rank < options_.world_size; ++rank)
      if (auto c = connections_.find(job_.rank(rank).connection); c != connections_.end()) {
        c->second.rank = rank;
        queue(c->second, MessageWriter(MessageType::renumbered).number(rank).frame());
      }
    log(describe_order(locations, order));
  }

  /// Sends all addresses to all ranks; those of absent ones are empty. A rank on the coordinator's host is
  /// seen at a loopback address. Other ranks reach it at the coordinator's address.
  void welcome_all() {
    welcomed_ = true;
    if (options_.by_distance) renumber();
    std::string outside;
    for (const KnownRank& r : job_.ranks())
      if (!is_loopback(r.address)) outside = r.own_address;
    std::map<std::array<std::string, 4>, int64_t> known;
    MessageWriter w(MessageType::welcome);
    w.number(options_.world_size);
    for (const KnownRank& r : job_.ranks()) {
      // A host is sent with its first rank. Every rank has the number of its host.
      const std::array<std::string, 4> fields{
          r.host, is_loopback(r.address) && !outside.empty() ? outside : r.address, r.identity, r.switches};
      const auto [at, fresh] = known.emplace(fields, static_cast<int64_t>(known.size()));
      w.number(at->second);
      if (fresh)
        for (const std::string& field : fields) w.text(field);
    }
    const std::string frame = w.frame();
    for (const KnownRank& r : job_.ranks())
      if (auto c = connections_.find(r.connection); c != connections_.end()) queue(c->second, frame);
    poke(changed_);
  }

  void queue(Connection& c, const std::string& frame) {
    c.out += frame;
    flush_out(c);
  }
  void flush_out(Connection& c) {
    while (!c.out.empty()) {
      const ssize_t n = ::send(c.fd.get(), c.out.data(), c.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) return;  // EAGAIN: poll reports it; broken: the next read reports it
      c.out.erase(0, static_cast<size_t>(n));
    }
  }
  void flush(int fd) { flush_out(connections_.at(fd)); }

  // ---- liveness and the verdict ----

  void watch() {
    const SteadyTime now = steady_now();
    if (seconds_between(last_ping_, now) >= 1) {
      last_ping_ = now;
      const std::string ping = MessageWriter(MessageType::ping).frame();
      for (auto& [fd, c] : connections_)
        if (c.rank >= 0 && c.out.size() < 4096) queue(c, ping);
      std::vector<int> late;
      for (auto& [fd, c] : connections_)
        if (!c.trusted() && seconds_between(c.opened, now) > 5) late.push_back(fd);
      for (int fd : late)
        if (connections_.at(fd).kinship == Kinship::other_recipe)
          connections_.erase(fd);
        else
          drop_stranger(fd, "it sent no handshake for 5 s");
    }
    if (verdict_.failed) return;
    job_.watch(now, listens_at_);
    if (!welcomed_ && job_.all_joined()) welcome_all();  // without those that did not come
    if (job_.any_failure() && now >= job_.settled()) decide();
  }

  void decide() {
    verdict_ = job_.verdict();
    const std::string end = MessageWriter(MessageType::end)
                                .number(static_cast<int>(verdict_.code))
                                .number(verdict_.rank)
                                .text(verdict_.lines[0])
                                .frame();
    for (auto& [fd, c] : connections_)
      if (c.rank >= 0) queue(c, end);
    poke(changed_);
  }

  const std::string settings_;
  const JobKey key_;
  mutable std::mutex mutex_;
  std::map<int, Connection> connections_;  // key: descriptor
  Liveness job_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<int>> waiters_;
  std::set<std::string> strangers_logged_;
  Verdict verdict_;
  std::string stop_reason_;
  std::string listens_at_;
  SteadyTime last_ping_{};
  bool stopping_ = false, welcomed_ = false;
  Fd listener_, wake_, changed_;
  std::thread thread_;
};

Coordinator::Coordinator(CoordinatorOptions options)
    : server_(std::make_unique<Server>(std::move(options))) {}
Coordinator::~Coordinator() = default;
int Coordinator::port() const { return server_->port_; }
int Coordinator::changed_fd() const { return server_->changed_fd(); }
void Coordinator::clear_changed() { server_->clear_changed(); }
void Coordinator::request_stop(const std::string& reason) { server_->request_stop(reason); }
void Coordinator::child_ended(int rank, bool by_signal, int code, const std::string& text) {
  server_->child_ended(rank, by_signal, code, text);
}
void Coordinator::child_stopped(int rank, int signal) { server_->child_stopped(rank, signal); }
Verdict Coordinator::verdict() const { return server_->verdict(); }
bool Coordinator::finished() const { return server_->finished(); }
ExitCode Coordinator::goodbye_code() const { return server_->goodbye_code(); }
bool Coordinator::said_goodbye(int rank) const { return server_->said_goodbye(rank); }
bool Coordinator::joined(int rank) const { return server_->joined(rank); }
std::string Coordinator::host_of(int rank) const { return server_->host_of(rank); }
std::optional<std::string> Coordinator::value(const std::string& key) const { return server_->value(key); }

}  // namespace ltrain
