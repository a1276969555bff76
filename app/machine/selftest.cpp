// `ltrain selftest allreduce`: starts ranks with the real launcher, runs all-reduces, and compares the sums.
// For checking an installation or a cluster, for the launch benchmark and for fault tests. Not listed in
// --help.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/machine/doctor_libraries.h"
#include "base/fault_point.h"
#include "runtime/launch/folder_lock.h"
#include "runtime/launch/job.h"
#include "runtime/launch/supervisor/supervisor.h"

namespace ltrain::app {
namespace {

struct SelftestOptions {
  int ranks = 2;
  int64_t elements = 1024, steps = 1;
  double step_seconds = 0, deadline = 60;
  std::string run_dir, interface, flights;
  int restarts = 0;
  double restart_wait = 0.2;
};

void all_reduce_steps(Job& job, const SelftestOptions& o) {
  const RankInfo& me = job.info();
  job.section("setup");
  if (!o.flights.empty()) job.keep_flight_in(o.flights);
  auto world = job.new_world_group();
  auto stream = make_worker_stream("comm");
  std::vector<float> data(static_cast<size_t>(o.elements));
  const Tensor t{data.data(), DType::f32, DeviceKind::cpu, {o.elements}, nullptr};
  const double expected = me.world_size * (me.world_size + 1) / 2.0;
  int64_t step = 0;
  for (; step < o.steps; ++step) {
    job.section("step", step);
    LT_FAULT_POINT("selftest.step");
    std::vector<float> flag{job.stop_requested() ? 1.f : 0.f};
    world->all_reduce(*stream, {flag.data(), DType::f32, DeviceKind::cpu, {1}, nullptr}, ReduceOp::max);
    stream->synchronize();
    if (flag[0] > 0) break;
    std::fill(data.begin(), data.end(), static_cast<float>(me.rank + 1));
    world->all_reduce(*stream, t);
    stream->synchronize();
    for (float v : data)
      if (v != expected) fail(ExitCode::internal, "all_reduce gave {} and not {}", v, expected);
    if (o.step_seconds > 0) ::usleep(static_cast<useconds_t>(o.step_seconds * 1e6));
  }
  StopRequest stop = job.stop_requested();
  if (!stop) stop.reason = "a signal to another rank";
  if (me.rank == 0)
    std::printf("selftest: %d ranks (%s), %lld steps, %lld bytes sent by rank 0%s%s\n", me.world_size,
                me.source.c_str(), static_cast<long long>(step), static_cast<long long>(world->wire_bytes()),
                step < o.steps ? ", stopped by " : "", step < o.steps ? stop.reason.c_str() : "");
  std::fflush(stdout);
  world->barrier(*stream);
  job.finish(step < o.steps ? ExitCode::preempted : ExitCode::done);
  if (step < o.steps) throw Error(ExitCode::preempted, "stopped by request");
}

void run_rank(const SelftestOptions& o) {
  JobOptions options;
  options.interface = o.interface;
  options.hang_seconds = o.deadline;
  auto job = Job::join(options);
  try {
    all_reduce_steps(*job, o);
  } catch (const Error& e) {
    if (e.code() != ExitCode::preempted) job->fail(e);
    throw;
  } catch (const std::exception& e) {
    job->fail(e);
  }
}

std::vector<std::string> same_arguments(const SelftestOptions& o) {
  return {"selftest",       "allreduce",
          "--elements",     std::to_string(o.elements),
          "--steps",        std::to_string(o.steps),
          "--step-seconds", std::to_string(o.step_seconds),
          "--deadline",     std::to_string(o.deadline),
          "--interface",    o.interface,
          "--flights",      o.run_dir.empty() ? "" : o.run_dir + "/flight"};
}

}  // namespace

void add_selftest(CLI::App& app) {
  auto* selftest = app.add_subcommand("selftest", "Checks of an installation")->group("");
  auto* command = selftest->add_subcommand("allreduce", "Starts ranks, sums over them, compares");
  selftest->add_subcommand("faults", "Lists the places where LTRAIN_FAULT can make a rank fail")
      ->callback([] {
        for (std::string_view name : kFaultPoints)
          std::printf("%.*s\n", static_cast<int>(name.size()), name.data());
      });
  add_selftest_collectives(*selftest);
  add_selftest_kernels(*selftest);
  add_selftest_library(*selftest);
  auto o = std::make_shared<SelftestOptions>();
  command->add_option("--ranks", o->ranks, "Ranks to start, when no launcher's variables say")
      ->check(CLI::Range(1, 4096));
  command->add_option("--elements", o->elements, "Length of the vector")->check(CLI::Range(1, 1 << 28));
  command->add_option("--steps", o->steps, "How often");
  command->add_option("--step-seconds", o->step_seconds, "Pause after each");
  command->add_option("--deadline", o->deadline, "A rank that gets nothing done for so long hangs, seconds");
  command->add_option("--run-dir", o->run_dir, "Where logs/ goes");
  command->add_option("--interface", o->interface, "Network interface");
  command->add_option("--flights", o->flights, "Where the flight recorder's files go");
  command->add_option("--max-restarts", o->restarts, "As launch.max_restarts");
  command->add_option("--restart-wait", o->restart_wait, "As launch.restart_wait_seconds");
  command->callback([o] {
    const LaunchEnvironment e = detect_environment(process_variables());
    if (e.kind == LaunchEnvironment::Kind::rank ||
        (e.kind == LaunchEnvironment::Kind::single && o->ranks == 1))
      return run_rank(*o);
    SuperviseOptions s;
    s.ranks = e.ranks_per_node > 0 ? e.ranks_per_node : o->ranks;
    s.arguments = same_arguments(*o);
    s.run_dir = o->run_dir;
    if (!o->run_dir.empty()) s.flight_dir = o->run_dir + "/flight";
    s.attempt = e.attempt;
    s.restarts = {o->restarts, o->restart_wait, 10 * o->restart_wait};
    if (e.kind == LaunchEnvironment::Kind::node) {
      s.node = e.node, s.nodes = e.nodes, s.token = e.token;
      s.coordinator_host = e.coordinator_host, s.coordinator_port = e.coordinator_ports.at(0);
    }
    std::optional<FolderLock> lock;
    if (s.node == 0 && !o->run_dir.empty()) lock.emplace(lock_output(o->run_dir));
    const int code = supervise(s);
    if (code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace ltrain::app
