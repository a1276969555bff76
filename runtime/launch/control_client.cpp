#include "runtime/launch/control_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/launch/coordinator.h"
#include "runtime/launch/message.h"
#include "runtime/launch/socket.h"

namespace ltrain {

class ControlClient::Impl {
 public:
  explicit Impl(ControlOptions options) : options_(std::move(options)), bounds_(liveness_bounds()) {
    connect();
    wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const LaunchEnvironment& e = options_.environment;
    out_ = MessageWriter(MessageType::hello)
               .number(e.rank)
               .number(e.world_size)
               .text(options_.host)
               .number(::getpid())
               .text(options_.identity)
               .frame();
    last_heard_ = steady_now();
    thread_ = std::thread([this] { loop(); });
    std::unique_lock lock(mutex_);
    // The coordinator gives up first and says who is missing; this is for when it cannot.
    const bool in_time = changed_.wait_until(lock, after(options_.join_seconds + 5),
                                             [&] { return !ranks_.empty() || !refused_.empty() || closed_; });
    std::string why;
    if (!refused_.empty())
      why = "was refused by the coordinator: " + refused_;
    else if (ranks_.empty() && closed_)
      why = ended_.empty() ? "lost the coordinator while joining" : ended_;
    else if (!in_time)
      why = fmt::format("waited {:g} s for the other ranks", options_.join_seconds + 5);
    if (why.empty()) return;
    lock.unlock();
    stop_thread();
    fail(ExitCode::rank_lost, "rank {} on host {}, coordinator {} port {}: {}", e.rank, options_.host,
         address_, port_, why);
  }

  ~Impl() { stop_thread(); }

  std::vector<RankAddress> ranks_;
  std::string local_address_;

  void send(const std::string& frame) {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    out_ += frame;
    flush();
    if (!out_.empty()) poke();
  }

  void send_status() {
    if (options_.status) send(write_status(options_.status()));
  }

  bool send_and_wait(const std::string& frame, bool leaving) {
    std::unique_lock lock(mutex_);
    if (closed_) return false;
    leaving_ = leaving_ || leaving;
    const uint64_t before = noted_;
    out_ += frame;
    flush();
    poke();
    changed_.wait_for(lock, std::chrono::seconds(2), [&] { return noted_ > before || closed_; });
    return noted_ > before;
  }

  void stop_thread() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    poke();
    if (thread_.joinable()) thread_.join();
  }

  std::string get(const std::string& key, double timeout_seconds) {
    std::unique_lock lock(mutex_);
    if (auto v = values_.find(key); v != values_.end()) return v->second;
    out_ += MessageWriter(MessageType::get).text(key).frame();
    flush();
    poke();
    const bool in_time =
        changed_.wait_until(lock, after(timeout_seconds), [&] { return values_.contains(key) || closed_; });
    if (values_.contains(key)) return values_[key];
    if (in_time)
      fail(ExitCode::rank_lost, "lost the coordinator at {} port {} while waiting for another rank", address_,
           port_);
    fail(ExitCode::rank_lost, "no rank published \"{}\" within {:g} s", key, timeout_seconds);
  }

 private:
  void poke() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(wake_.get(), &one, sizeof(one));
  }

  /// All addresses of the coordinator's host, all candidate ports, again and again until the deadline: it may
  /// start later than this rank, and another program may sit on one of the ports.
  void connect() {
    const LaunchEnvironment& e = options_.environment;
    const SteadyTime deadline = after(options_.join_seconds);
    std::map<std::string, std::string> tried;  // "address port" -> why not
    std::string lookup;
    double pause = 0.01;
    while (true) {
      lookup.clear();
      const auto addresses = resolve(e.coordinator_host, &lookup);
      for (int port : e.coordinator_ports)
        for (const std::string& address : addresses) {
          std::string why;
          const SteadyTime limit = std::min(deadline, after(3));
          Connection c = connect_once(address, port, limit, &why);
          if (c.fd.valid() && shake_hands(c.fd.get(), limit, &why)) {
            fd_ = std::move(c.fd);
            address_ = address, port_ = port;
            local_address_ = ltrain::local_address(fd_.get());
            return;
          }
          tried[fmt::format("{} port {}", address, port)] = why;
        }
      if (steady_now() >= deadline) break;
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(pause, 0.5)));
      pause *= 1.5;
    }
    std::string list = lookup;
    bool loopback = !tried.empty();
    for (const auto& [where, why] : tried) {
      list += fmt::format("{}{}: {}", list.empty() ? "" : "; ", where, why);
      loopback = loopback && where.starts_with("127.");
    }
    fail(ExitCode::rank_lost,
         "rank {} on host {} cannot reach the coordinator (rank 0) on host {} within {:g} s; tried {}{}",
         e.rank, options_.host, e.coordinator_host, options_.join_seconds, list,
         loopback && e.coordinator_host != "127.0.0.1"
             ? fmt::format("; {} is a loopback address here: give rank 0's address with "
                           "LTRAIN_COORDINATOR=address:port",
                           tried.begin()->first.substr(0, tried.begin()->first.find(' ')))
             : "");
  }

  bool shake_hands(int fd, SteadyTime deadline, std::string* why) {
    const std::string hello = handshake(kClientMagic, options_.environment.token);
    const std::string expected = handshake(kServerMagic, options_.environment.token);
    if (::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(hello.size())) {
      *why = std::strerror(errno);
      return false;
    }
    std::string answer;
    while (answer.size() < expected.size()) {
      pollfd p{fd, POLLIN, 0};
      const int ready = ::poll(&p, 1, poll_timeout(deadline));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) {
        *why = "something listens but does not answer like ltrain";
        return false;
      }
      char buffer[kHandshakeBytes];
      const ssize_t n = ::recv(fd, buffer, expected.size() - answer.size(), 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0) {
        *why = "something listens but belongs to another job";
        return false;
      }
      answer.append(buffer, static_cast<size_t>(n));
    }
    if (answer == expected) return true;
    *why = "something listens but does not speak ltrain's protocol";
    return false;
  }

  void flush() {  // with the lock held
    while (!out_.empty()) {
      const ssize_t n = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) return;
      out_.erase(0, static_cast<size_t>(n));
    }
  }

  void loop() {
    std::unique_lock lock(mutex_);
    SteadyTime next_beat = steady_now();
    while (!stopping_ && !closed_) {
      if (steady_now() >= next_beat) {
        next_beat = after(bounds_.heartbeat);
        if (!ranks_.empty() && out_.size() < (1 << 16)) {
          lock.unlock();
          const std::string frame = options_.status ? write_status(options_.status()) : "";
          lock.lock();
          out_ += frame;
        }
      }
      flush();
      pollfd polled[2] = {{fd_.get(), static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT)), 0},
                          {wake_.get(), POLLIN, 0}};
      const SteadyTime before = steady_now();
      lock.unlock();
      ::poll(polled, 2, poll_timeout(next_beat));
      lock.lock();
      if (seconds_between(before, steady_now()) > bounds_.silence / 2)
        last_heard_ = steady_now();  // we were stopped
      if (polled[1].revents) {
        uint64_t n;
        [[maybe_unused]] const ssize_t ignored = ::read(wake_.get(), &n, sizeof(n));
      }
      if (polled[0].revents & (POLLIN | POLLHUP | POLLERR)) receive(lock);
      if (!closed_ && !leaving_ && !options_.coordinator_can_sleep &&
          seconds_between(last_heard_, steady_now()) > bounds_.silence)
        lost(lock, fmt::format("has been silent for {:.0f} s", seconds_between(last_heard_, steady_now())));
    }
  }

  void receive(std::unique_lock<std::mutex>& lock) {
    char buffer[16384];
    while (true) {
      const ssize_t n = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n <= 0) return lost(lock, n == 0 ? "closed the connection" : std::strerror(errno));
      last_heard_ = steady_now();
      in_.feed(buffer, static_cast<size_t>(n));
      bool bad = false;
      while (auto m = in_.next(&bad)) {
        handle(*m, lock);
        if (closed_) return;
      }
      if (bad) return lost(lock, "sent a malformed message");
    }
  }

  void handle(const Message& m, std::unique_lock<std::mutex>& lock) {
    MessageReader in(m);
    switch (m.type) {
      case MessageType::welcome: {
        const int64_t count = in.number();
        std::vector<RankAddress> ranks;
        for (int64_t i = 0; i < count && in.ok(); ++i) {
          RankAddress r;
          r.host = in.text(), r.address = in.text(), r.identity = in.text();
          ranks.push_back(std::move(r));
        }
        if (in.ok()) ranks_ = std::move(ranks);
        break;
      }
      case MessageType::value: {
        const std::string key = in.text();
        values_[key] = in.text();
        break;
      }
      case MessageType::refused:
        refused_ = in.text();
        break;
      case MessageType::noted:
        ++noted_;
        break;
      case MessageType::stop: {
        const std::string reason = in.text();
        lock.unlock();
        if (options_.on_stop) options_.on_stop(reason);
        lock.lock();
        break;
      }
      case MessageType::end: {
        const int64_t code = in.number(), culprit = in.number();
        ended_ = in.text();
        end(lock, static_cast<ExitCode>(code), static_cast<int>(culprit), ended_);
        break;
      }
      default:
        break;
    }
    changed_.notify_all();
  }

  void lost(std::unique_lock<std::mutex>& lock, const std::string& how) {
    const std::string host = ranks_.empty() ? options_.environment.coordinator_host : ranks_[0].host;
    const std::string who = options_.environment.coordinator_is_launcher
                                ? fmt::format("the launcher on host {}", host)
                                : fmt::format("rank 0 on host {}, which coordinates the run,", host);
    const bool expected = leaving_ || ranks_.empty();
    if (expected) {
      closed_ = true;
      changed_.notify_all();
    } else {
      end(lock, ExitCode::rank_lost, -1, fmt::format("{} {}", who, how));
    }
  }

  void end(std::unique_lock<std::mutex>& lock, ExitCode code, int culprit, const std::string& reason) {
    closed_ = true;
    changed_.notify_all();
    lock.unlock();
    if (options_.on_end && !ranks_.empty()) options_.on_end(code, culprit, reason);
    lock.lock();
  }

  ControlOptions options_;
  const LivenessBounds bounds_;
  Fd fd_, wake_;
  std::string address_;
  int port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string out_, refused_, ended_;
  FrameBuffer in_;
  std::map<std::string, std::string> values_;
  uint64_t noted_ = 0;
  bool stopping_ = false, closed_ = false, leaving_ = false;
  SteadyTime last_heard_{};
  std::thread thread_;
};

ControlClient::ControlClient(ControlOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
ControlClient::~ControlClient() = default;
const std::vector<RankAddress>& ControlClient::ranks() const { return impl_->ranks_; }
const std::string& ControlClient::local_address() const { return impl_->local_address_; }
void ControlClient::set(const std::string& key, const std::string& value) {
  impl_->send(MessageWriter(MessageType::set).text(key).text(value).frame());
}
std::string ControlClient::get(const std::string& key, double timeout) { return impl_->get(key, timeout); }
void ControlClient::close() { impl_->stop_thread(); }
void ControlClient::send_status_now() { impl_->send_status(); }
void ControlClient::send_signal(const std::string& reason) {
  impl_->send(MessageWriter(MessageType::signal).text(reason).frame());
}
bool ControlClient::send_error(ExitCode code, const std::string& text) {
  impl_->send_status();
  return impl_->send_and_wait(
      MessageWriter(MessageType::error).number(static_cast<int>(code)).text(text).frame(), false);
}
bool ControlClient::send_goodbye(ExitCode code) {
  return impl_->send_and_wait(MessageWriter(MessageType::goodbye).number(static_cast<int>(code)).frame(),
                              true);
}

}  // namespace ltrain
