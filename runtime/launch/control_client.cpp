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

#include "base/printable.h"
#include "base/time_scale.h"
#include "parallel/comm/socket.h"
#include "runtime/launch/coordinator.h"
#include "runtime/launch/job_greeting.h"
#include "runtime/launch/message.h"

namespace ltrain {
namespace {

/// Two jobs may use the same port. A rank that finds another job's coordinator keeps looking for its own for
/// this time before it reports a different recipe.
constexpr double kOtherJobSeconds = 3;
constexpr double kAnswerSeconds = 3;

}  // namespace

class ControlClient::Impl {
 public:
  explicit Impl(ControlOptions options)
      : options_(std::move(options)),
        bounds_(liveness_bounds()),
        settings_(settings_of_job(options_.environment.world_size, options_.settings)),
        key_(options_.environment.token, settings_) {
    connect();
    wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const LaunchEnvironment& e = options_.environment;
    out_ = MessageWriter(MessageType::hello)
               .number(e.rank)
               .number(e.world_size)
               .text(options_.host)
               .number(::getpid())
               .text(options_.identity)
               .text(options_.switches)
               .frame();
    last_heard_ = steady_now();
    thread_ = std::thread([this] { loop(); });
    std::unique_lock lock(mutex_);
    // The coordinator times out first and reports the missing ranks. This limit applies if it cannot.
    const bool in_time = changed_.wait_until(lock, after(options_.join_seconds + 5),
                                             [&] { return !ranks_.empty() || !refused_.empty() || closed_; });
    std::string why;
    ExitCode code = ExitCode::rank_lost;
    if (!refused_.empty())
      why = "was refused by the coordinator: " + refused_, code = refused_code_;
    else if (ranks_.empty() && closed_)
      why = ended_.empty() ? "lost the coordinator while joining" : ended_, code = ended_code_;
    else if (!in_time)
      why = fmt::format("waited {:g} s for the other ranks", options_.join_seconds + 5);
    if (why.empty()) return;
    lock.unlock();
    stop_thread();
    fail(code, "rank {} on host {}, coordinator {} port {}: {}", e.rank, options_.host, address_, port_, why);
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

  /// Tries all addresses of the coordinator's host and all candidate ports until the deadline. The
  /// coordinator may start later than this rank, and other programs or jobs may use some of the ports.
  void connect() {
    const LaunchEnvironment& e = options_.environment;
    const SteadyTime deadline = after(options_.join_seconds);
    std::map<std::string, std::string> tried;  // key: "address port", value: reason for the failure
    std::string lookup;
    std::optional<std::pair<std::string, int>> other_recipe;
    SteadyTime other_until = deadline;
    double pause = 0.01;
    while (true) {
      lookup.clear();
      const auto addresses = resolve(e.coordinator_host, &lookup);
      for (int port : e.coordinator_ports)
        for (const std::string& address : addresses) {
          std::string why;
          const Kinship kinship = try_at(address, port, deadline, &why);
          if (kinship == Kinship::same) {
            address_ = address, port_ = port;
            local_address_ = ltrain::local_address(fd_.get());
            return;
          }
          if (kinship == Kinship::other_recipe && !other_recipe) {
            other_recipe.emplace(address, port);
            // A launcher's port and token belong to this job only.
            if (e.coordinator_is_launcher) say_difference(address, port);
            other_until = std::min(deadline, after(kOtherJobSeconds * time_scale()));
          }
          tried[fmt::format("{} port {}", address, port)] = why;
        }
      if (other_recipe && steady_now() >= other_until)
        say_difference(other_recipe->first, other_recipe->second);
      if (steady_now() >= deadline) break;
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(pause, 0.5)));
      pause *= 1.5;
    }
    std::string list = printable(lookup);
    bool loopback = !tried.empty();
    for (const auto& [where, why] : tried) {
      list += fmt::format("{}{}: {}", list.empty() ? "" : "; ", where, why);
      loopback = loopback && where.starts_with("127.");
    }
    fail(ExitCode::rank_lost,
         "rank {} on host {} cannot reach the coordinator (rank 0) on host {} within {:g} s; tried {}{}",
         e.rank, options_.host, printable(e.coordinator_host), options_.join_seconds, list,
         loopback && e.coordinator_host != "127.0.0.1"
             ? fmt::format("; {} is a loopback address here: give rank 0's address with "
                           "LTRAIN_COORDINATOR=address:port",
                           tried.begin()->first.substr(0, tried.begin()->first.find(' ')))
             : "");
  }

  /// One attempt. With Kinship::same or other_recipe, fd_ is the connection.
  Kinship try_at(const std::string& address, int port, SteadyTime deadline, std::string* why) {
    const SteadyTime limit = std::min(deadline, after(kAnswerSeconds));
    Connection c = connect_once(address, port, limit, why);
    if (!c.fd.valid()) return Kinship::none;
    const Kinship kinship = greet_server(c.fd.get(), key_, limit, why);
    if (kinship != Kinship::none) fd_ = std::move(c.fd);
    return kinship;
  }

  /// The coordinator belongs to this job and has another recipe. It ends the job and reports the difference,
  /// which is reported here too.
  [[noreturn]] void say_difference(const std::string& address, int port) {
    const LaunchEnvironment& e = options_.environment;
    const SteadyTime limit = after(kAnswerSeconds);
    std::string why, text = "the recipe of the job there is another one";
    if (try_at(address, port, limit, &why) == Kinship::other_recipe) {
      const std::string frame = MessageWriter(MessageType::differs)
                                    .number(e.rank)
                                    .number(e.world_size)
                                    .text(options_.host)
                                    .text(settings_)
                                    .frame();
      if (const auto m = ask(frame, limit); m && m->type == MessageType::refused) {
        MessageReader in(*m);
        in.number();
        if (const std::string said = in.text(); in.ok()) text = said;
      }
    }
    fail(ExitCode::usage, "rank {} on host {}, coordinator {} port {}: {}", e.rank, options_.host, address,
         port, text);
  }

  /// Sends a message and returns the answer. The connection is not used for anything else.
  std::optional<Message> ask(const std::string& frame, SteadyTime deadline) {
    for (size_t sent = 0; sent < frame.size();) {
      pollfd p{fd_.get(), POLLOUT, 0};
      if (::poll(&p, 1, poll_timeout(deadline)) <= 0) return {};
      const ssize_t n =
          ::send(fd_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return {};
      if (n > 0) sent += static_cast<size_t>(n);
    }
    FrameBuffer in;
    std::string byte, why;
    while (receive_all(fd_.get(), 1, deadline, &byte, &why)) {
      in.feed(byte.data(), 1);
      byte.clear();
      bool bad = false;
      if (auto m = in.next(&bad); m || bad) return m;
    }
    return {};
  }

  void flush() {  // called with the lock held
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
        if (out_.size() < (1 << 16)) {  // also before all have joined, because the first may wait long
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
        last_heard_ = steady_now();  // this process was stopped
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
        std::vector<RankAddress> addresses;
        bool good = true;
        for (int64_t i = 0; i < count && in.ok() && good; ++i) {
          const auto at = static_cast<size_t>(in.number());
          good = at <= addresses.size();
          if (at == addresses.size()) {
            RankAddress a;
            a.host = in.text(), a.address = in.text(), a.identity = in.text(), a.switches = in.text();
            addresses.push_back(std::move(a));
          }
          if (good) ranks.push_back(addresses[at]);
        }
        if (in.ok() && good) ranks_ = std::move(ranks);
        break;
      }
      case MessageType::renumbered: {
        const int64_t rank = in.number();
        if (in.ok() && rank >= 0 && rank < options_.environment.world_size && options_.on_renumbered)
          options_.on_renumbered(static_cast<int>(rank));
        break;
      }
      case MessageType::value: {
        const std::string key = in.text();
        values_[key] = in.text();
        break;
      }
      case MessageType::refused: {
        const int64_t code = in.number();
        const std::string text = in.text();
        if (in.ok()) refused_code_ = static_cast<ExitCode>(code), refused_ = text;
        break;
      }
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
        ended_ = in.text(), ended_code_ = static_cast<ExitCode>(code);
        end(lock, ended_code_, static_cast<int>(culprit), ended_);
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
  const std::string settings_;
  const JobKey key_;
  Fd fd_, wake_;
  std::string address_;
  int port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string out_, refused_, ended_;
  ExitCode refused_code_ = ExitCode::rank_lost, ended_code_ = ExitCode::rank_lost;
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
