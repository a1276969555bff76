// `ltrain selftest collectives`: times collectives between ranks of this host over the transport that
// LTRAIN_TRANSPORT selects. Used by scripts/compare.sh bench-collectives. Not listed in --help.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "base/json/json.h"
#include "runtime/launch/job.h"
#include "runtime/launch/supervisor/supervisor.h"

namespace ltrain::app {
namespace {

struct CollectivesOptions {
  int ranks = 2, groups = 0;
  int64_t smallest = 256, largest = 64 << 20;
  double seconds = 0.2;
  std::vector<std::string> ops{"all_reduce", "reduce_scatter", "all_gather"};
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double quantile(std::vector<double>& v, double q) {
  const auto at = v.begin() + static_cast<int64_t>(q * static_cast<double>(v.size() - 1));
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

/// Times calls of one size for `seconds` and at least five times. Returns seconds per call. Rank 0 decides
/// the number of calls.
std::vector<double> time_calls(Communicator& group, Stream& stream, const std::function<void()>& once,
                               double seconds) {
  for (int i = 0; i < 2; ++i) once();
  double begin = now();
  once();
  std::vector<int64_t> count{static_cast<int64_t>(std::clamp(seconds / (now() - begin), 5.0, 20000.0))};
  group.broadcast(stream, {count.data(), DType::i64, DeviceKind::cpu, {1}, nullptr}, 0);
  std::vector<double> times;
  times.reserve(static_cast<size_t>(count[0]));
  group.barrier(stream);
  for (int64_t i = 0; i < count[0]; ++i) {
    begin = now();
    once();
    times.push_back(now() - begin);
  }
  return times;
}

nlohmann::ordered_json time_op(Communicator& group, Stream& stream, const std::string& op, int64_t bytes,
                               double seconds, std::vector<float>& whole, std::vector<float>& part) {
  const int n = group.size();
  const int64_t count = bytes / 4 / n * n;
  const Tensor all{whole.data(), DType::f32, DeviceKind::cpu, {count}, nullptr};
  const Tensor mine{part.data(), DType::f32, DeviceKind::cpu, {count / n}, nullptr};
  const Tensor other{whole.data() + count, DType::f32, DeviceKind::cpu, {count}, nullptr};
  std::vector<double> times = time_calls(
      group, stream,
      [&] {
        if (op == "all_reduce") group.all_reduce(stream, all);
        if (op == "reduce_scatter") group.reduce_scatter(stream, mine, all);
        if (op == "all_gather") group.all_gather(stream, all, mine);
        if (op == "send_recv")
          group.send_recv(stream, all, (group.rank() + 1) % n, other, (group.rank() + n - 1) % n);
      },
      seconds);
  return {{"op", op},
          {"bytes", count * 4},
          {"calls", times.size()},
          {"median", quantile(times, 0.5)},
          {"low", quantile(times, 0.1)},
          {"high", quantile(times, 0.9)}};
}

void run_rank(const CollectivesOptions& o) {
  auto job = Job::join();
  try {
    job->section("collectives");
    std::vector<int> all;
    for (int r = 0; r < job->info().world_size; ++r) all.push_back(r);
    nlohmann::ordered_json j{{"schema", "ltrain.collectives.v1"},
                             {"transport", transport_name(job->transport_of("world", all))},
                             {"ranks", job->info().world_size}};
    auto group = job->new_world_group();
    auto stream = make_inline_stream("comm");
    if (o.groups > 0) {  // time to create a group
      std::vector<std::unique_ptr<Communicator>> groups;
      group->barrier(*stream);
      const double begin = now();
      for (int i = 0; i < o.groups; ++i)
        groups.push_back(job->new_group(fmt::format("group {}", i), Axis::data, all));
      j["seconds_a_group"] = (now() - begin) / o.groups;
      group->barrier(*stream);
    }
    std::vector<float> whole(static_cast<size_t>(o.largest / 2)), part(static_cast<size_t>(o.largest / 4));
    for (const std::string& op : o.ops)
      for (int64_t bytes = o.smallest; bytes <= o.largest; bytes *= 4)
        j["samples"].push_back(time_op(*group, *stream, op, bytes, o.seconds, whole, part));
    group->barrier(*stream);
    if (job->info().rank == 0) std::printf("%s\n", j.dump().c_str());
    std::fflush(stdout);
  } catch (const std::exception& e) {
    job->fail(e);
  }
  job->finish();
}

}  // namespace

void add_selftest_collectives(CLI::App& selftest) {
  auto* command = selftest.add_subcommand("collectives", "Times collectives between ranks of this host");
  auto o = std::make_shared<CollectivesOptions>();
  command->add_option("--ranks", o->ranks, "Ranks to start")->check(CLI::Range(2, 128));
  command->add_option("--groups", o->groups, "Make so many groups first, and say how long one takes");
  command->add_option("--smallest", o->smallest, "Bytes; the next size is four times as large");
  command->add_option("--largest", o->largest, "Bytes");
  command->add_option("--seconds", o->seconds, "For one size of one operation");
  command->add_option("--ops", o->ops, "all_reduce, reduce_scatter, all_gather, send_recv")
      ->delimiter(',')
      ->check(CLI::IsMember({"all_reduce", "reduce_scatter", "all_gather", "send_recv"}));
  command->callback([o] {
    if (detect_environment(process_variables()).kind == LaunchEnvironment::Kind::rank) return run_rank(*o);
    SuperviseOptions s;
    s.ranks = o->ranks;
    s.threads_per_rank = 1;
    std::string ops;
    for (const std::string& op : o->ops) ops += (ops.empty() ? "" : ",") + op;
    s.arguments = {"selftest",   "collectives",
                   "--groups",   std::to_string(o->groups),
                   "--smallest", std::to_string(o->smallest),
                   "--largest",  std::to_string(o->largest),
                   "--seconds",  std::to_string(o->seconds),
                   "--ops",      ops};
    if (const int code = supervise(s); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace ltrain::app
