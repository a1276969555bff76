#include "runtime/launch/job.h"

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/exit_codes.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/progress.h"
#include "parallel/comm/communicator_gloo.h"
#include "parallel/comm/communicator_tree.h"
#include "parallel/comm/socket.h"
#include "parallel/nccl/communicator_nccl.h"
#include "parallel/shm/communicator_shm.h"
#include "runtime/launch/control_client.h"
#include "runtime/launch/coordinator.h"
#include "runtime/launch/environment/hostlist.h"
#include "runtime/launch/environment/slurm_node.h"
#include "runtime/launch/flight_dump.h"
#include "runtime/launch/handed.h"

namespace ltrain {

ExitCode exit_code_of(const std::exception& e) { return as_error(e).code(); }

namespace {

/// Timeout of waits for other ranks. The coordinator ends waits that last too long, and knows which rank is
/// at fault.
constexpr double kForever = 1e8;  // seconds

std::string this_host(const Variables& v) {
  // Under Slurm a node's name may differ from the host name, and users know the node.
  const auto node = v.find("SLURMD_NODENAME");
  return printable(node != v.end() && !node->second.empty() ? node->second : host_name(), 255);
}

void on_stack_signal(int) {
  void* frames[64];
  const int count = ::backtrace(frames, 64);
  ::backtrace_symbols_fd(frames, count, 2);
}

/// Prints the stack of a thread that does not return to stderr. backtrace() may allocate on its first call,
/// so it is called here once before the signal handler uses it.
void print_stack_of(pthread_t thread) {
  void* frame[1];
  ::backtrace(frame, 1);
  log_lines(LogLevel::error, "ltrain: this rank does not come back from:");
  struct sigaction action {};
  action.sa_handler = on_stack_signal;
  ::sigaction(SIGUSR2, &action, nullptr);
  ::pthread_kill(thread, SIGUSR2);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

}  // namespace

class Job::Impl {
 public:
  Impl(const JobOptions& options, const Variables& variables) : options_(options) {
    LaunchEnvironment e = options.environment ? *options.environment : detect_environment(variables);
    if (e.kind != LaunchEnvironment::Kind::rank) e = LaunchEnvironment{};
    info_ = {e.rank,       e.world_size, e.local_rank,
             e.local_size, e.node,       this_host(variables),
             e.source,     e.attempt,    e.coordinator_is_launcher};
    options_.join_seconds = join_seconds(variables, options_.join_seconds);
    launched_ = e.coordinator_is_launcher;
    set_fault_rank(info_.rank);
    install_stop_signals(launched_);
    if (e.kind == LaunchEnvironment::Kind::rank) connect(e, switches_above(variables));
    if (launched_) tell_joined(variables);
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    if (client_) client_->close();
    client_.reset();
    coordinator_.reset();
  }

  void connect(LaunchEnvironment e, const std::string& switches) {
    LT_FAULT_POINT("launch.join");
    if (!e.coordinator_is_launcher && e.rank == 0) {
      CoordinatorOptions c;
      c.address = is_loopback(e.coordinator_host) ? e.coordinator_host : "";
      c.ports = e.coordinator_ports;
      c.token = e.token;
      c.settings = options_.settings;
      c.world_size = e.world_size;
      c.join_seconds = options_.join_seconds;
      c.by_distance = options_.by_distance, c.parts = options_.parts;
      c.log = [](const std::string& line) { log_lines(LogLevel::info, "ltrain: " + line); };
      coordinator_ = std::make_unique<Coordinator>(std::move(c));
      e.coordinator_host = is_loopback(e.coordinator_host) ? e.coordinator_host : "127.0.0.1";
      e.coordinator_ports = {coordinator_->port()};
    }
    if (std::string unknown; e.source == "Slurm" && resolve(e.coordinator_host, &unknown).empty())
      if (const std::string address = slurm_node_address(e.coordinator_host); !address.empty())
        e.coordinator_host = address;
    ControlOptions c;
    c.environment = e;
    c.host = info_.host;
    c.identity = shared_memory_identity();
    c.switches = switches;
    c.settings = options_.settings;
    c.join_seconds = options_.join_seconds;
    c.coordinator_can_sleep = launched_ && is_loopback(e.coordinator_host);
    c.status = [this] { return status(); };
    c.on_renumbered = [this](int rank) {
      info_.rank = rank;
      set_fault_rank(rank);
    };
    c.on_stop = [this](const std::string& reason) {
      std::lock_guard lock(mutex_);
      if (!stop_) stop_ = {StopRequest::Kind::save_and_stop, reason};
    };
    c.on_end = [this](ExitCode code, int culprit, const std::string& reason) {
      ended_elsewhere(code, culprit, reason);
    };
    try {
      client_ = std::make_shared<ControlClient>(std::move(c));
      std::lock_guard lock(mutex_);
      connected_ = true;
    } catch (...) {
      if (coordinator_) {
        wait_for_verdict();
        print_verdict();
      }
      throw;
    }
  }

  RankStatus status() {
    const StopRequest signal = signalled_stop();
    bool tell = false;
    RankStatus s;
    if (take_flight_request()) keep_flight("SIGUSR2");
    {
      std::lock_guard lock(mutex_);
      if (gloo_) note_progress_of(*gloo_);
      s.section = section_, s.step = step_, s.waits_for = waits_for_;
      s.idle_seconds = count_idle();
      s.idle_limit = options_.hang_seconds;
      std::erase_if(groups_, [](const KnownGroup& g) { return g.flight.expired(); });
      for (const KnownGroup& g : groups_)
        if (const auto flight = g.flight.lock()) {
          const FlightRecord::View v = flight->view();
          s.groups.push_back({g.label, v.last, v.entered, v.completed});
        }
      tell = signal && !signal_told_ && connected_;
      signal_told_ = signal_told_ || tell;
    }
    if (tell) client_->send_signal(signal.reason);
    return s;
  }

  void keep_flight_in(const std::string& folder) {
    std::lock_guard lock(mutex_);
    flight_folder_ = folder;
  }

  /// Writes the flight recorder's file of this rank. A disk without room must not hide the failure that it is
  /// about.
  void keep_flight(const std::string& reason) {
    FlightSource source{.rank = info_.rank,
                        .world_size = info_.world_size,
                        .host = info_.host,
                        .reason = reason,
                        .section = {},
                        .step = -1,
                        .groups = {}};
    std::vector<std::shared_ptr<const FlightRecord>> records;  // alive until the file is written
    std::string folder;
    {
      std::lock_guard lock(mutex_);
      folder = flight_folder_, source.section = section_, source.step = step_;
      for (const KnownGroup& g : groups_)
        if (auto flight = g.flight.lock()) {
          source.groups.push_back({g.label, g.members, flight.get()});
          records.push_back(std::move(flight));
        }
    }
    if (folder.empty()) return;
    try {
      write_flight(folder, source, flight_ring());
    } catch (const std::exception& e) {
      log_lines(LogLevel::warning, fmt::format("warning: no record of the last calls: {}", e.what()));
    }
  }

  /// Keeps the record of an end that somebody will ask about: a lost rank, or a defect. Only the first call
  /// counts: later ones come when groups are gone.
  void keep_flight_of_end(ExitCode code, const std::string& reason) {
    if (code != ExitCode::rank_lost && code != ExitCode::internal) return;
    if (!end_kept_.exchange(true)) keep_flight(reason);
  }

  /// Seconds without progress, by a clock that stops while this process is stopped. Call with the lock held.
  double count_idle() {
    const SteadyTime now = steady_now();
    const uint64_t made = progress_made.load(std::memory_order_relaxed);
    idle_seconds_ += std::min(seconds_between(idle_counted_, now), 2 * liveness_bounds().heartbeat);
    if (std::exchange(progress_seen_, made) != made) idle_seconds_ = 0;
    idle_counted_ = now;
    return idle_seconds_;
  }

  /// While it exists, this rank waits for others. The coordinator judges how long.
  class Waiting {
   public:
    Waiting(Impl& job, std::string for_whom) : job_(job) { set(std::move(for_whom)); }
    ~Waiting() { set(""); }
    Waiting(const Waiting&) = delete;

   private:
    void set(std::string for_whom) {
      std::lock_guard lock(job_.mutex_);
      job_.waits_for_ = std::move(for_whom);
    }
    Impl& job_;
  };

  /// Called on the control thread when the run ends. Gives the main thread a moment to exit by its own error,
  /// then exits.
  void ended_elsewhere(ExitCode code, int culprit, const std::string& reason) {
    keep_flight_of_end(code, reason);
    if (coordinator_) {
      wait_for_verdict();
      print_verdict();
    } else if (!(launched_ &&
                 info_.rank == 0)) {  // rank 0's stderr is the terminal, and the launcher reports there
      log_lines(LogLevel::error,
                fmt::format("ltrain: rank {} on host {} ends: {}", info_.rank, info_.host, reason));
    }
    const SteadyTime limit = after(liveness_bounds().end_grace);
    {
      std::lock_guard lock(mutex_);
      end_said_ = true;
      end_code_ = code == ExitCode::done ? ExitCode::rank_lost : code;
    }
    while (steady_now() < limit) {
      {
        std::lock_guard lock(mutex_);
        if (leaving_) return;  // the main thread is about to exit
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (culprit == info_.rank) print_stack_of(main_thread_);
    ::_exit(static_cast<int>(end_code_));
  }

  void wait_for_verdict() {
    const SteadyTime limit = after(liveness_bounds().verdict);
    while (!coordinator_->verdict().failed && steady_now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  void print_verdict() {
    {
      std::lock_guard lock(mutex_);
      if (verdict_printed_) return;
      verdict_printed_ = true;
    }
    const Verdict v = coordinator_->verdict();
    for (size_t i = 0; i < v.lines.size(); ++i)
      log_lines(LogLevel::error, (i == 0 ? "ltrain: run failed: " : "  ") + v.lines[i]);
    if (v.failed) log_lines(LogLevel::error, "ltrain: " + exit_code_text(static_cast<int>(v.code)));
  }

  /// Index of this rank in `ranks`, and a key of the store that no other group uses.
  std::pair<int, std::string> place_in(const std::string& name, const std::vector<int>& ranks) {
    int place = -1;
    std::string members;
    for (size_t i = 0; i < ranks.size(); ++i) {
      LT_CHECK(ranks[i] >= 0 && ranks[i] < info_.world_size,
               "expected ranks from 0 to {} in group \"{}\", got {}", info_.world_size - 1, name, ranks[i]);
      if (ranks[i] == info_.rank) place = static_cast<int>(i);
      members += fmt::format("{}{}", i ? "," : "", ranks[i]);
    }
    LT_CHECK(place >= 0, "expected rank {} among the ranks of group \"{}\", got ranks {}", info_.rank, name,
             members);
    const std::string base = fmt::format("group/{}/{}", name, members);
    return {place, fmt::format("{}/{}", base, ++group_counts_[base])};
  }

  /// `control`: for few bytes between many ranks.
  enum class GroupUse : uint8_t { training, control, rare };

  std::unique_ptr<Communicator> new_group(const std::string& name, AxisSet axes,
                                          const std::vector<int>& ranks, GroupUse use) {
    const auto [place, key] = place_in(name, ranks);
    if (ranks.size() == 1) return make_single_group(name, axes);
    const Waiting waiting(*this, fmt::format("the other ranks of group {}[{}]", name, format_ranges(ranks)));
    const int size = static_cast<int>(ranks.size());
    const Transport transport = transport_of(name, ranks);
    std::unique_ptr<Communicator> group;
    if (transport == Transport::shm && use != GroupUse::rare) {
      ShmOptions o;
      o.timeout_seconds = o.connect_timeout_seconds = kForever;
      group = make_shm_group(client_, key, place, size, name, axes, o);
    } else if (use != GroupUse::training) {
      TreeOptions o;
      o.timeout_seconds = o.connect_timeout_seconds = kForever;
      group = make_tree_group(listener(), client_, key, place, size, hosts_of(ranks), name, axes, o);
    } else {
      if (!gloo_) {
        auto gloo = make_gloo_transport(listener());
        std::lock_guard lock(mutex_);
        gloo_ = std::move(gloo);
      }
      GlooOptions o;
      o.timeout_seconds = o.connect_timeout_seconds = kForever;
      group = make_gloo_group(gloo_, client_, key, place, size, name, axes, o);
    }
    note_group(name, ranks, *group, use == GroupUse::training ? transport_text(transport) : "");
    return group;
  }

  std::vector<RankLocation> locations() const {
    if (!client_) return {{info_.host, ""}};
    std::vector<RankLocation> out;
    for (const RankAddress& r : client_->ranks()) out.push_back({r.host, r.switches});
    return out;
  }

  /// For each rank, the first of `ranks` on its host.
  std::vector<int> hosts_of(const std::vector<int>& ranks) const {
    std::map<std::string, int> first;
    std::vector<int> hosts;
    for (int r : ranks)
      hosts.push_back(first.emplace(client_->ranks()[static_cast<size_t>(r)].host, r).first->second);
    return hosts;
  }

  std::unique_ptr<Communicator> new_gpu_group(const std::string& name, AxisSet axes,
                                              const std::vector<int>& ranks, GroupMessages messages) {
    const Waiting waiting(*this, fmt::format("the other ranks of NCCL's group {}", name));
    if (!nccl_) {
      nccl::set_environment(
          {options_.deterministic, options_.interface, options_.shared_gpu ? info_.rank : -1});
      auto library = nccl::open_library();
      nccl_name_ = "NCCL " + library->version();
      NcclOptions o;
      o.timeout_seconds = o.connect_timeout_seconds = kForever;
      o.wait_before_calls = options_.shared_gpu;
      nccl_ = make_nccl_world(std::move(library), *client_, "nccl", info_.rank, info_.world_size, o);
    }
    auto group = make_nccl_group(nccl_, ranks, name, axes, messages);
    if (group && group->size() > 1) note_group(name, ranks, *group, nccl_name_);
    return group;
  }

  /// Records a group for the heartbeat, and its transport for the report at the end of the run.
  void note_group(const std::string& name, const std::vector<int>& ranks, const Communicator& group,
                  const std::string& transport) {
    if (!transport.empty() && transports_.find(transport) == std::string::npos)
      transports_ += (transports_.empty() ? "" : " and ") + transport;
    std::lock_guard lock(mutex_);
    groups_.push_back({fmt::format("{}[{}]", name, format_ranges(ranks)), ranks, group.flight()});
  }

  Transport transport_of(const std::string& name, const std::vector<int>& ranks) const {
    if (ranks.size() < 2) return Transport::shm;  // moves no data
    std::vector<RankPlace> places;
    for (int r : ranks) {
      const RankAddress& a = client_->ranks()[static_cast<size_t>(r)];
      places.push_back({r, a.host, a.identity});
    }
    return choose_transport(name, places);
  }

  /// Listener for data connections from ranks on other hosts.
  const std::shared_ptr<PeerListener>& listener() {
    if (listener_) return listener_;
    const std::string& seen = client_->ranks()[static_cast<size_t>(info_.rank)].address;
    try {
      listener_ = std::make_shared<PeerListener>(seen, options_.interface);
    } catch (const Error&) {  // address translation in between: use our end of the channel
      if (!options_.interface.empty()) throw;
      listener_ = std::make_shared<PeerListener>(client_->local_address());
    }
    return listener_;
  }

  void section(const std::string& name, int64_t step) {
    LT_FAULT_POINT("launch.section");
    note_progress();
    std::unique_lock lock(mutex_);
    const bool tell = connected_ && name != section_;
    section_ = name, step_ = step;
    lock.unlock();
    set_log_step(step);
    if (tell) client_->send_status_now();
  }

  void tell(const std::string& fact, int64_t value) {
    if (client_) client_->set(fact, std::to_string(value));
  }

  StopRequest stop_requested() const {
    const StopRequest signal = signalled_stop();
    if (signal.kind == StopRequest::Kind::stop_now) return signal;
    std::lock_guard lock(mutex_);
    return stop_ ? stop_ : signal;
  }

  /// Returns the exit code of the run's cause if it is known, else that of the exception. `said`: set if the
  /// printed verdict has the text of the exception.
  ExitCode fail(const std::exception& e, bool& said) {
    if (!client_) return exit_code_of(e);
    keep_flight_of_end(exit_code_of(e), as_error(e).what());
    if (!std::exchange(told_, true)) client_->send_error(exit_code_of(e), as_error(e).what());
    if (coordinator_) {
      wait_for_verdict();
      print_verdict();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time for the others to read it
    } else if (!launched_) {
      // Wait for the verdict, because this rank's own error may be a consequence. A launcher reports it
      // itself.
      const SteadyTime limit = after(liveness_bounds().verdict);
      while (!end_said() && steady_now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const Verdict v = coordinator_ ? coordinator_->verdict() : Verdict{};
    said = v.failed && v.text == as_error(e).what();
    std::lock_guard lock(mutex_);
    leaving_ = true;
    return v.failed ? v.code : end_said_ ? end_code_ : exit_code_of(e);
  }

  void abandon(const std::exception& e) {
    keep_flight_of_end(exit_code_of(e), as_error(e).what());
    if (!nccl_) return;
    if (client_ && !std::exchange(told_, true)) client_->send_error(exit_code_of(e), as_error(e).what());
    abort_nccl_world(*nccl_, fmt::format("rank {} fails: {}", info_.rank, e.what()));
  }

  bool end_said() const {
    std::lock_guard lock(mutex_);
    return end_said_;
  }

  void finish(ExitCode code) {
    LT_FAULT_POINT("launch.finish");
    if (!client_) return;
    section("finish", -1);
    const Waiting waiting(*this, "the other ranks to end");
    client_->send_goodbye(code);
    if (coordinator_) {
      while (!coordinator_->finished() && !coordinator_->verdict().failed)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (const Verdict v = coordinator_->verdict(); v.failed) {
        print_verdict();
        std::lock_guard lock(mutex_);
        leaving_ = true;
        throw Error(v.code, v.lines[0]);
      }
    }
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }

  RankInfo info_;
  JobOptions options_;
  std::string transports_;

 private:
  bool launched_ = false;
  const pthread_t main_thread_ = ::pthread_self();
  mutable std::mutex mutex_;
  std::string section_ = "start";
  int64_t step_ = -1;
  std::string waits_for_;
  uint64_t progress_seen_ = 0;
  double idle_seconds_ = 0;
  SteadyTime idle_counted_ = steady_now();
  struct KnownGroup {
    std::string label;  // "data[0-3]"
    std::vector<int> members;
    std::weak_ptr<const FlightRecord> flight;
  };
  std::vector<KnownGroup> groups_;
  std::string flight_folder_;  // empty: no file is written
  std::atomic<bool> end_kept_{false};
  StopRequest stop_;
  bool told_ = false;  // the coordinator knows why this rank failed
  bool connected_ = false, signal_told_ = false, leaving_ = false, verdict_printed_ = false,
       end_said_ = false;
  ExitCode end_code_ = ExitCode::rank_lost;
  std::map<std::string, int> group_counts_;
  std::shared_ptr<NcclWorld> nccl_;
  std::string nccl_name_;
  std::unique_ptr<Coordinator> coordinator_;
  std::shared_ptr<ControlClient> client_;
  std::shared_ptr<PeerListener> listener_;
  std::shared_ptr<GlooTransport> gloo_;
};

Job::Job(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Job::~Job() = default;

std::unique_ptr<Job> Job::join(const JobOptions& options) {
  return std::unique_ptr<Job>(new Job(std::make_unique<Impl>(options, process_variables())));
}

const RankInfo& Job::info() const { return impl_->info_; }
std::vector<RankLocation> Job::locations() const { return impl_->locations(); }
std::unique_ptr<Communicator> Job::new_group(const std::string& name, AxisSet axes,
                                             const std::vector<int>& ranks) {
  return impl_->new_group(name, axes, ranks, Impl::GroupUse::training);
}
std::unique_ptr<Communicator> Job::new_control_group(const std::string& name, AxisSet axes,
                                                     const std::vector<int>& ranks) {
  return impl_->new_group(name, axes, ranks, Impl::GroupUse::control);
}
std::unique_ptr<Communicator> Job::new_tree_group(const std::string& name, AxisSet axes,
                                                  const std::vector<int>& ranks) {
  return impl_->new_group(name, axes, ranks, Impl::GroupUse::rare);
}
std::unique_ptr<Communicator> Job::new_gpu_group(const std::string& name, AxisSet axes,
                                                 const std::vector<int>& ranks, GroupMessages messages) {
  return impl_->new_gpu_group(name, axes, ranks, messages);
}
std::unique_ptr<Communicator> Job::new_world_group() {
  std::vector<int> all;
  for (int r = 0; r < info().world_size; ++r) all.push_back(r);
  return new_group("world", Axis::data, all);
}
std::string Job::transports() const { return impl_->transports_; }
Transport Job::transport_of(const std::string& name, const std::vector<int>& ranks) const {
  return impl_->transport_of(name, ranks);
}
void Job::section(const std::string& name, int64_t step) { impl_->section(name, step); }
void Job::keep_flight_in(const std::string& folder) { impl_->keep_flight_in(folder); }
void Job::tell(const std::string& fact, int64_t value) { impl_->tell(fact, value); }
StopRequest Job::stop_requested() const { return impl_->stop_requested(); }
void Job::abandon(const std::exception& e) { impl_->abandon(e); }
void Job::fail(const std::exception& e) {
  bool said = false;
  const ExitCode code = impl_->fail(e, said);
  if (said) throw Error(code, "");
  if (code != exit_code_of(e)) throw Error(code, as_error(e).what());
  throw;
}
void Job::finish(ExitCode code) { impl_->finish(code); }

}  // namespace ltrain
