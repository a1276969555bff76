#include "runtime/replicas/quorum_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <thread>

#include "base/error.h"
#include "base/printable.h"
#include "base/progress.h"
#include "base/time_scale.h"
#include "parallel/comm/socket.h"
#include "runtime/launch/job_greeting.h"

namespace ltrain {
namespace {

constexpr int kTickMilliseconds = 20;
constexpr double kAnswerSeconds = 3;  // for the other side to prove itself
constexpr std::string_view kPurpose = "quorum of replicas";

bool send_bytes(int fd, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      pollfd p{fd, POLLOUT, 0};
      ::poll(&p, 1, kTickMilliseconds);
      continue;
    }
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

std::string numbers_frame(MessageType type, const std::vector<int64_t>& values) {
  MessageWriter out(type);
  for (const int64_t v : values) out.number(v);
  return out.frame();
}

std::string membership_frame(const Membership& m) {
  std::vector<int64_t> values{m.epoch, m.counts, m.done, m.step, m.source};
  for (const std::vector<int>* part : {&m.members, &m.behind}) {
    values.push_back(static_cast<int64_t>(part->size()));
    values.insert(values.end(), part->begin(), part->end());
  }
  return numbers_frame(MessageType::membership, values);
}

std::optional<Membership> read_membership(const Message& message) {
  MessageReader in(message);
  Membership m;
  m.epoch = in.number(), m.counts = in.number() != 0, m.done = in.number() != 0, m.step = in.number();
  m.source = static_cast<int>(in.number());
  for (std::vector<int>* part : {&m.members, &m.behind}) {
    const int64_t count = in.number();
    for (int64_t i = 0; i < count && in.ok(); ++i) part->push_back(static_cast<int>(in.number()));
  }
  if (!in.ok()) return std::nullopt;
  return m;
}

std::string refusal(const Error& e) {
  return MessageWriter(MessageType::refused).number(static_cast<int>(e.code())).text(e.what()).frame();
}

}  // namespace

QuorumChannel QuorumChannel::connect(const std::string& host, int port, const std::string& token,
                                     double seconds) {
  const SteadyTime deadline = after(seconds);
  const JobKey key(token, kPurpose);
  std::string why;
  while (true) {
    for (const std::string& address : resolve(host, &why)) {
      // The last attempt has its full time, too: its reason is the one that is told.
      const SteadyTime limit = after(kAnswerSeconds * time_scale());
      Connection c = connect_once(address, port, limit, &why);
      if (!c.fd.valid()) continue;
      if (greet_server(c.fd.get(), key, limit, &why) != Kinship::same) continue;
      send_at_once(c.fd);
      QuorumChannel channel;
      channel.fd_ = std::move(c.fd);
      return channel;
    }
    if (steady_now() >= deadline)
      fail(ExitCode::rank_lost, "the quorum of the replicas at {} port {} was not reached within {:g} s: {}",
           printable(host), port, seconds, printable(why));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

QuorumChannel QuorumChannel::accept(Fd socket, const std::string& token) {
  const SteadyTime limit = after(kAnswerSeconds * time_scale());
  const JobKey key(token, kPurpose);
  const std::string mine = JobKey::greeting(kServerMagic);
  std::string theirs, proofs, why;
  if (!receive_all(socket.get(), kGreetingBytes, limit, &theirs, &why) || !theirs.starts_with(kClientMagic) ||
      !send_few(socket.get(), mine, &why) || !receive_all(socket.get(), kProofBytes, limit, &proofs, &why) ||
      key.judge(proofs, theirs, mine) != Kinship::same ||
      !send_few(socket.get(), key.answer(Kinship::same, theirs, mine), &why))
    return {};
  send_at_once(socket);
  QuorumChannel channel;
  channel.fd_ = std::move(socket);
  return channel;
}

bool QuorumChannel::send(std::string frame) { return send_bytes(fd_.get(), frame); }

bool QuorumChannel::ended() const {
  char byte;
  const ssize_t n = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

std::optional<Message> QuorumChannel::receive(const std::function<bool()>& go_on) {
  while (true) {
    bool bad = false;
    if (auto m = in_.next(&bad); m || bad) return bad ? std::nullopt : m;
    pollfd p{fd_.get(), POLLIN, 0};
    const int ready = ::poll(&p, 1, kTickMilliseconds);
    if (!go_on()) return std::nullopt;
    if (ready <= 0) continue;
    char buffer[4096];
    const ssize_t n = ::recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return std::nullopt;
    in_.feed(buffer, static_cast<size_t>(n));
  }
}

// ---- the server ----

class QuorumServer::Impl {
 public:
  Impl(QuorumSettings settings, int port, std::string token)
      : replicas_(settings.replicas), quorum_(std::move(settings)), token_(std::move(token)) {
    std::string error;
    socket_ = listen_on("", {port}, &port_, &error);
    if (!socket_.valid()) fail(ExitCode::usage, "the quorum of the replicas cannot listen: {}", error);
    thread_ = std::thread([this] { accept_all(); });
  }

  ~Impl() {
    stop_ = true;
    thread_.join();
    for (Served& s : connections_) s.thread.join();
  }

  int port() const { return port_; }

 private:
  void accept_all() {
    while (!stop_) {
      pollfd p{socket_.get(), POLLIN, 0};
      if (::poll(&p, 1, kTickMilliseconds) <= 0) continue;
      const int fd = ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) continue;
      join_ended();
      Served& served = connections_.emplace_back();
      served.thread = std::thread([this, fd, &served] {
        serve(Fd(fd));
        served.ended = true;
      });
    }
  }

  struct Served {
    std::thread thread;
    std::atomic<bool> ended{false};
  };

  void join_ended() {
    connections_.remove_if([](Served& s) {
      if (!s.ended) return false;
      s.thread.join();
      return true;
    });
  }

  void serve(Fd socket) {
    QuorumChannel channel = QuorumChannel::accept(std::move(socket), token_);
    if (!channel.valid()) return;
    const auto running = [this] { return !stop_; };
    int replica = -1;
    int64_t connection = 0;
    bool votes = false;
    if (const auto hello = channel.receive(running)) {
      try {
        std::tie(replica, votes) = welcome(*hello);
        if (votes) connection = quorum_.arrive(replica);
        channel.send(MessageWriter(MessageType::welcome).frame());
      } catch (const Error& e) {
        channel.send(refusal(e));
        return;
      }
    }
    while (replica >= 0) {
      const auto m = channel.receive(running);
      if (!m || !answer(channel, *m, replica, votes, connection)) break;
    }
    if (votes) quorum_.depart(replica, connection);
  }

  /// The replica, and whether the rank is its first.
  std::pair<int, bool> welcome(const Message& hello) {
    MessageReader in(hello);
    const int64_t replica = in.number(), rank = in.number();
    const std::string settings = in.text();
    if (hello.type != MessageType::hello || !in.ok() || rank < 0)
      fail(ExitCode::internal, "expected the greeting of a replica's rank");
    if (replica < 0 || replica >= replicas_)
      fail(ExitCode::usage, "replica {}: the job has {} replicas (replicas.count), numbered from 0", replica,
           replicas_);
    const std::lock_guard lock(mutex_);
    if (settings_.empty()) settings_ = settings, owner_ = fmt::format("replica {}", replica);
    if (settings != settings_)
      fail(ExitCode::usage, "{}",
           first_difference(settings_, owner_, settings, fmt::format("replica {}", replica)));
    return {static_cast<int>(replica), rank == 0};
  }

  /// Returns false if the connection is of no more use.
  bool answer(QuorumChannel& channel, const Message& m, int replica, bool votes, int64_t connection) {
    const auto alive = [&] { return !stop_ && !channel.ended(); };
    MessageReader in(m);
    const int64_t epoch = in.number();
    try {
      if (m.type == MessageType::vote && votes) {
        Vote v{.replica = replica, .epoch = epoch};
        v.step = in.number(), v.complete = in.number() != 0;
        v.after = static_cast<AfterStep>(in.number());
        return in.ok() && v.after <= AfterStep::done &&
               channel.send(membership_frame(quorum_.vote(v, connection, alive)));
      }
      const std::string key = in.text();
      if (m.type == MessageType::set) {
        quorum_.set(epoch, key, in.text());
        return in.ok();
      }
      if (m.type != MessageType::get) return false;
      const double seconds = in.real();
      if (!in.ok()) return false;
      const std::string value = quorum_.get(epoch, key, seconds, alive);
      return channel.send(MessageWriter(MessageType::value).text(key).text(value).frame());
    } catch (const Error& e) {
      return channel.send(refusal(e));
    }
  }

  const int replicas_;
  Quorum quorum_;
  const std::string token_;
  std::mutex mutex_;
  std::string settings_, owner_;  // settings of the first replica that came, and its name
  Fd socket_;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::list<Served> connections_;  // used by thread_
  std::thread thread_;
};

QuorumServer::QuorumServer(QuorumSettings quorum, int port, std::string token)
    : impl_(std::make_unique<Impl>(std::move(quorum), port, std::move(token))) {}
QuorumServer::~QuorumServer() = default;
int QuorumServer::port() const { return impl_->port(); }

// ---- the client ----

QuorumClient::QuorumClient(const QuorumAddress& address, int rank, const std::string& settings,
                           double join_seconds)
    : channel_(QuorumChannel::connect(address.host, address.port, address.token, join_seconds)) {
  ask(MessageWriter(MessageType::hello).number(address.replica).number(rank).text(settings).frame(),
      MessageType::welcome, [] { return true; });
}

std::string QuorumClient::local_address() const { return ltrain::local_address(channel_.fd()); }

Message QuorumClient::ask(std::string frame, MessageType expected, const std::function<bool()>& go_on) {
  bool stopped = false;
  std::optional<Message> m;
  if (channel_.send(std::move(frame)))
    m = channel_.receive([&] {
      note_progress();  // the quorum limits the wait
      stopped = !go_on();
      return !stopped;
    });
  if (stopped) fail(ExitCode::preempted, "asked to stop while it waited for other replicas");
  if (!m) fail(ExitCode::rank_lost, "the connection to the quorum of the replicas has ended");
  MessageReader in(*m);
  if (m->type == MessageType::refused) {
    const auto code = static_cast<ExitCode>(in.number());
    const std::string text = in.text();
    fail(code, "{}", printable(text));
  }
  if (m->type != expected) fail(ExitCode::rank_lost, "the quorum of the replicas sent an unexpected message");
  return *m;
}

Membership QuorumClient::vote(const Vote& v, const std::function<bool()>& stop) {
  const std::lock_guard lock(mutex_);
  const Message m =
      ask(numbers_frame(MessageType::vote, {v.epoch, v.step, v.complete, static_cast<int64_t>(v.after)}),
          MessageType::membership, [&] { return !stop(); });
  const auto membership = read_membership(m);
  if (!membership) fail(ExitCode::rank_lost, "the quorum of the replicas sent a broken membership");
  return *membership;
}

void QuorumClient::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  if (!channel_.send(MessageWriter(MessageType::set).number(epoch_).text(key).text(value).frame()))
    fail(ExitCode::rank_lost, "the connection to the quorum of the replicas has ended");
}

std::string QuorumClient::get(const std::string& key, double timeout_seconds) {
  const std::lock_guard lock(mutex_);
  const Message m =
      ask(MessageWriter(MessageType::get).number(epoch_).text(key).real(timeout_seconds).frame(),
          MessageType::value, [] { return true; });
  MessageReader in(m);
  in.text();
  return in.text();
}

}  // namespace ltrain
