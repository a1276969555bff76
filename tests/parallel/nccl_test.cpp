// The groups of GPUs, on an NCCL of threads: what NCCL itself does is not tested here.
#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <thread>

#include "base/time_scale.h"
#include "parallel/mesh/groups.h"
#include "parallel/nccl/communicator_nccl.h"
#include "parallel/nccl/library.h"
#include "parallel/pipeline/generators.h"
#include "parallel/pipeline/lowering.h"
#include "runtime/program/stage_run.h"
#include "tests/parallel/group_support.h"
#include "tests/parallel/must.h"
#include "tests/support/fake_nccl.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Runs a thread a rank; the errors by rank.
std::vector<std::string> on_world(
    FakeNetwork& network, int size, const NcclOptions& options,
    const std::function<void(std::shared_ptr<NcclWorld>, int rank, Stream&)>& body) {
  auto store = make_memory_store();
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      auto stream = make_worker_stream("comm");  // asynchronous, as a GPU's
      try {
        body(make_nccl_world(network.open(), *store, "nccl", r, size, options), r, *stream);
      } catch (const std::exception& e) {
        errors[r] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  return errors;
}

/// Text of the error that a call throws.
std::string thrown(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

std::vector<int> first_ranks(int n) {
  std::vector<int> all(n);
  for (int i = 0; i < n; ++i) all[i] = i;
  return all;
}

/// Every kind of call on `c`, as a text of all results.
std::string all_calls(Communicator& c, Stream& s) {
  const int n = c.size(), r = c.rank();
  std::string out;
  const auto tell = [&](const std::vector<float>& v) {
    s.synchronize();
    for (float x : v) out += fmt::format("{:a} ", x);
    out += "\n";
  };
  std::vector<float> a = values<float>(r, 12 * n), whole(a.size() * n), part(12), b = a, most = a;
  c.all_reduce(s, tensor(b));
  tell(b);
  c.all_reduce(s, tensor(most), ReduceOp::max);
  tell(most);
  c.all_gather(s, tensor(whole), tensor(a));
  tell(whole);
  std::vector<float> used = a;  // undefined afterwards
  c.reduce_scatter(s, tensor(part), tensor(used));
  tell(part);
  std::vector<float> exchanged(a.size());
  c.all_to_all(s, tensor(exchanged), tensor(a));
  tell(exchanged);
  // Rank i keeps 2 rows, sends i to each, none when i is 0.
  std::vector<int64_t> to(n, r), from(n);
  for (int i = 0; i < n; ++i) from[i] = i;
  to[r] = from[r] = 2;
  std::vector<float> uneven(a.size() * n + 24);
  std::vector<float> rows = values<float>(r, (2 + r * n) * 3);
  c.all_to_all_v(s, tensor(uneven, {static_cast<int64_t>(uneven.size() / 3), 3}), from,
                 tensor(rows, {static_cast<int64_t>(rows.size() / 3), 3}), to);
  tell(uneven);
  std::vector<float> root = a;
  c.broadcast(s, tensor(root), n - 1);
  tell(root);
  std::vector<float> sum = a;
  c.reduce(s, tensor(sum), 0);
  s.synchronize();
  if (r == 0) tell(sum);
  if (n > 1) {
    std::vector<float> ring(a.size());
    c.send_recv(s, tensor(a), (r + 1) % n, tensor(ring), (r + n - 1) % n);
    tell(ring);
    if (r == 0) c.send(s, tensor(a), 1);
    if (r == 1) {
      c.recv(s, tensor(ring), 0);
      tell(ring);
    }
  }
  s.synchronize();
  return out;
}

}  // namespace

TEST_CASE("NCCL groups do what groups of threads do, whatever they are split into") {
  for (int size : {1, 2, 3, 5}) {
    FakeNetwork network;
    std::vector<std::string> got(size), want(size), pairs(size), want_pairs(size);
    const auto errors =
        on_world(network, size, {}, [&](std::shared_ptr<NcclWorld> world, int rank, Stream& s) {
          // Groups of neighbours, the last rank alone or in none.
          std::vector<int> pair{rank / 2 * 2};
          if (rank / 2 * 2 + 1 < size) pair.push_back(rank / 2 * 2 + 1);
          auto two = make_nccl_group(world, pair, "pair", Axis::tensor);
          auto none = make_nccl_group(world, {}, "none", Axis::tensor);
          auto all = make_nccl_group(world, first_ranks(size), "all", Axis::data);
          must(none == nullptr && all->size() == size && two->rank() == rank % 2, "the places in groups");
          got[rank] = all_calls(*all, s);
          pairs[rank] = all_calls(*two, s);
          all->check();
        });
    for (const auto& e : errors) CHECK(e == "");
    CHECK(network.alive() == 0);
    const auto by_threads = [](Communicator& c, Stream& s) {
      const std::string text = all_calls(c, s);
      c.barrier(s);  // one that leaves ends the others
      return text;
    };
    on_ranks(Kind::in_process, size, [&](Communicator& c, Stream& s) { want[c.rank()] = by_threads(c, s); });
    for (int first = 0; first < size; first += 2)
      on_ranks(Kind::in_process, std::min(2, size - first),
               [&](Communicator& c, Stream& s) { want_pairs[first + c.rank()] = by_threads(c, s); });
    for (int r = 0; r < size; ++r) {
      INFO("rank " << r << " of " << size);
      CHECK((got[r] == want[r]));
      CHECK((pairs[r] == want_pairs[r]));
    }
  }
}

TEST_CASE("all groups of a mesh are split from the world of NCCL, whichever ranks are in them") {
  const int world_size = 12;  // 2 tensor x 2 data x 3 stages
  FakeNetwork network;
  const auto errors =
      on_world(network, world_size, {}, [&](std::shared_ptr<NcclWorld> world, int rank, Stream&) {
        Mesh mesh;
        mesh.degree[static_cast<int>(Axis::tensor)] = mesh.degree[static_cast<int>(Axis::data)] = 2;
        mesh.degree[static_cast<int>(Axis::pipeline)] = 3;
        mesh.rank = rank;
        GroupSet::Options options;
        options.together = options.tied_stages = true;
        options.key_value_heads = 1;
        options.links = {{0, 1}, {1, 2}, {2, 1}, {1, 0}};
        const GroupSet set(
            mesh,
            [&](const GroupRequest& r) {
              return make_nccl_group(world, r.ranks, r.name, r.axes, r.messages);
            },
            make_worker_stream, options);
        const Groups& g = set.groups();
        const auto host = make_inline_stream("host");
        const auto must_sum_to = [&](const Group& group, double sum) {
          std::vector<double> v{static_cast<double>(rank)};
          group.all_reduce(*host, tensor(v));
          must(v[0] == sum,
               fmt::format("rank {} in {}: {} == {}", rank, group.communicator().name(), v[0], sum));
        };
        const auto sum = [&](AxisSet axes) {
          double s = 0;
          for (int r : mesh.group(axes)) s += r;
          return s;
        };
        const int stage = mesh.coordinate(Axis::pipeline);
        must_sum_to(g.tensor, sum(Axis::tensor));
        must_sum_to(g.gradient, sum(kGradientAxes));
        must_sum_to(g.world, 66);
        must_sum_to(g.copies, sum(Axis::tensor));
        must_sum_to(g.tied, stage == 1 ? rank : mesh.at(Axis::pipeline, 0) + mesh.at(Axis::pipeline, 2));
        must(g.links.size() == (stage == 1 ? 4 : 2), "links to the neighbours");
        for (const auto& l : g.links)
          must_sum_to(l.group, mesh.at(Axis::pipeline, l.from) + mesh.at(Axis::pipeline, l.to));
      });
  for (const auto& e : errors) CHECK(e == "");
  CHECK(network.alive() == 0);
  // Groups of a rank: the world, for numbers alone; links, by two ends each. The tied embedding of the first
  // and the last stage is a tensor, although its group is as small and over the same axis as a link.
  CHECK(network.channels_of(world_size) == std::vector<int>(12, 1));
  std::map<int, int> pairs;
  for (const int channels : network.channels_of(2)) ++pairs[channels];
  CHECK(pairs == std::map<int, int>{{0, 8 + 12 + 12 + 12}, {4, 4 * 4 * 2}});
}

TEST_CASE("calls of NCCL are enqueued: what a heartbeat sees is entered before it is complete") {
  FakeNetwork network;
  std::atomic<bool> seen{false};
  const auto errors = on_world(network, 2, {}, [&](std::shared_ptr<NcclWorld> world, int rank, Stream& s) {
    auto c = make_nccl_group(world, {0, 1}, "data", Axis::data);
    std::vector<float> v(100);
    c->all_reduce(s, tensor(v));  // the first one blocks until the other rank has come
    s.synchronize();
    while (rank == 1 && !seen) std::this_thread::yield();
    c->all_reduce(s, tensor(v));
    if (rank == 0) {
      const auto view = c->flight()->view();
      seen = true;  // before anything is thrown: rank 1 waits for it
      s.synchronize();
      must(view.entered == 2 && view.completed <= 1, "a call entered and not complete");
    }
    s.synchronize();
    for (int i = 0; i < 500 && c->completed() < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    must(c->completed() == 2, "complete");
    must(to_string(c->last_entered()) == "all_reduce #2 of 100 f32", to_string(c->last_entered()));
  });
  for (const auto& e : errors) CHECK(e == "");
}

TEST_CASE("a call that a rank leaves out is aborted at the deadline, and named") {
  FakeNetwork network;
  NcclOptions options;
  options.timeout_seconds = 0.5 * time_scale();
  // Memory outlives the streams that work on it, as an arena does.
  std::vector<std::vector<float>> memory(3, std::vector<float>(100));
  std::vector<std::string> said(3);
  const auto begin = std::chrono::steady_clock::now();
  const auto errors =
      on_world(network, 3, options, [&](std::shared_ptr<NcclWorld> world, int rank, Stream& s) {
        auto c = make_nccl_group(world, {0, 1, 2}, "data", Axis::data);
        std::vector<float>& v = memory[rank];
        c->all_reduce(s, tensor(v));
        s.synchronize();
        c->check();
        if (rank != 1) c->all_reduce(s, tensor(v));
        s.synchronize();  // comes back, with nothing of use in v
        if (rank == 1)
          std::this_thread::sleep_for(std::chrono::duration<double>(2 * options.timeout_seconds));
        if (rank != 1) {
          said[rank] = thrown([&] { c->check(); });
          c->all_reduce(s, tensor(v));
        }
      });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(10 * time_scale()));
  for (int r : {0, 2}) {
    CHECK_THAT(said[r], Contains("group \"data\"") && Contains("in all_reduce #2 of 100 f32") &&
                            Contains(fmt::format("waited {:g} s", options.timeout_seconds)));
    CHECK_THAT(errors[r], Contains("after an earlier failure"));
  }
  CHECK(errors[1] == "");
  CHECK(network.alive() == 0);
}

TEST_CASE("what the network says of a lost rank ends the call before its deadline") {
  FakeNetwork network;
  std::vector<std::vector<float>> memory(2, std::vector<float>(10));
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = on_world(network, 2, {}, [&](std::shared_ptr<NcclWorld> world, int rank, Stream& s) {
    auto c = make_nccl_group(world, {0, 1}, "tensor", Axis::tensor);
    std::vector<float>& v = memory[rank];
    if (rank == 1) return network.lose(1);
    c->all_reduce(s, tensor(v));
    s.synchronize();
    c->check();
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(10 * time_scale()));
  // The first error of the world, of the group, or of the call.
  CHECK_THAT(errors[0], Contains("remote process exited"));
}

TEST_CASE("NCCL reads what the recipe says, and a user's variables stay but on a shared GPU") {
  const std::vector<const char*> names{"NCCL_LAUNCH_ORDER_IMPLICIT",
                                       "NCCL_NVLS_ENABLE",
                                       "NCCL_SOCKET_IFNAME",
                                       "NCCL_HOSTID",
                                       "NCCL_NET",
                                       "NCCL_P2P_DISABLE",
                                       "NCCL_SHM_DISABLE",
                                       "NCCL_IB_DISABLE",
                                       "NCCL_ALGO",
                                       "NCCL_PROTO",
                                       "NCCL_MAX_CTAS",
                                       "NCCL_RAS_ENABLE"};
  const auto clear = [&] {
    for (const char* name : names) ::unsetenv(name);
  };
  const auto is = [](const char* name, const char* value) {
    const char* now = std::getenv(name);
    return value ? now && std::string(now) == value : now == nullptr;
  };
  clear();
  nccl::set_environment({});
  CHECK(is("NCCL_LAUNCH_ORDER_IMPLICIT", "1"));
  for (const char* name : names)
    if (std::string(name) != "NCCL_LAUNCH_ORDER_IMPLICIT") CHECK(is(name, nullptr));
  nccl::set_environment({.deterministic = true, .interface = "ib0"});
  CHECK(is("NCCL_NVLS_ENABLE", "0"));
  CHECK(is("NCCL_SOCKET_IFNAME", "=ib0"));  // exactly this name, not a longer one
  clear();
  for (const char* name : {"NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_NVLS_ENABLE", "NCCL_SOCKET_IFNAME"})
    ::setenv(name, "given", 1);
  nccl::set_environment({.deterministic = true, .interface = "ib0"});
  for (const char* name : {"NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_NVLS_ENABLE", "NCCL_SOCKET_IFNAME"})
    CHECK(is(name, "given"));
  nccl::set_environment({.interface = "ib0", .share_gpu_as = 3});
  CHECK(is("NCCL_HOSTID", "ltrain-rank-3"));
  CHECK(is("NCCL_SOCKET_IFNAME", "lo"));
  CHECK(is("NCCL_NVLS_ENABLE", "0"));
  clear();
}

TEST_CASE("groups for transfers and for numbers have few channels, and others what NCCL chooses") {
  FakeNetwork network;
  const auto errors = on_world(network, 4, {}, [&](std::shared_ptr<NcclWorld> world, int rank, Stream&) {
    const std::vector<int> all{0, 1, 2, 3}, pair{rank / 2 * 2, rank / 2 * 2 + 1};
    make_nccl_group(world, all, "data", Axis::data);
    make_nccl_group(world, all, "world", kAllAxes, GroupMessages::numbers);
    make_nccl_group(world, pair, "stage 0 to 1", Axis::pipeline, GroupMessages::transfers);
    make_nccl_group(world, pair, "tied", Axis::pipeline);
  });
  for (const auto& e : errors) CHECK(e == "");
  CHECK(network.channels_of(4) == std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(network.channels_of(2) == std::vector<int>{4, 4, 4, 4, 0, 0, 0, 0});
}

namespace {

/// The transfers of a step of each rank, in the order of its program, whose compute takes no time; on links
/// that were connected when they were made, or by their first transfer.
std::vector<std::string> run_transfers(const pipeline::Schedule& schedule, bool connected, bool wait) {
  FakeNetwork network;
  NcclOptions options;
  options.wait_before_calls = wait;
  options.timeout_seconds = connected ? 60 * time_scale() : 0.3 * time_scale();
  // Each transfer has a stream of its own, because links are streams.
  std::vector<std::deque<std::vector<float>>> memory(static_cast<size_t>(schedule.ranks));
  return on_world(network, schedule.ranks, options, [&](std::shared_ptr<NcclWorld> world, int rank, Stream&) {
    std::map<std::pair<int, int>, std::pair<std::unique_ptr<Communicator>, std::unique_ptr<Stream>>> links;
    for (const auto& [from, to] : schedule_links(schedule)) {
      std::vector<int> ends;
      if (rank == from || rank == to) ends = {from, to};
      const std::string name = fmt::format("stage {} to {}", from, to);
      auto group = make_nccl_group(world, ends, name, Axis::pipeline);
      if (!group) continue;
      auto& link = links[{from, to}];
      link = {std::move(group), make_worker_stream(name)};
      if (connected) link.first->connect(*link.second, 0, 1);
    }
    for (const pipeline::PipelineStep& step : pipeline::lower(schedule, rank)) {
      const Tensor t = tensor(memory[static_cast<size_t>(rank)].emplace_back(8));
      if (step.kind == pipeline::StepKind::receive) {
        auto& [group, stream] = links.at({step.peer, rank});
        group->recv(*stream, t, 0);
      } else if (step.kind == pipeline::StepKind::send) {
        auto& [group, stream] = links.at({rank, step.peer});
        group->send(*stream, t, 1);
      }
    }
    for (auto& [ends, link] : links) link.second->synchronize();
    for (auto& [ends, link] : links) link.first->check();
  });
}

}  // namespace

TEST_CASE("no schedule waits in a circle for links that were connected when they were made") {
  for (const pipeline::ScheduleInfo& info : pipeline::schedules())
    for (int ranks = 2; ranks <= 8; ++ranks)
      for (int micros = 1; micros <= 16; ++micros) {
        const int chunks = info.least_chunks;
        if (pipeline::schedule_rule(info.name, ranks, chunks, micros)) continue;
        const pipeline::Schedule schedule =
            pipeline::make_schedule(std::string(info.name), ranks, chunks, micros);
        // Calls that each wait for their stream (debug.shared_gpu) take most of the time, and all take long
        // under a sanitizer: some of all.
        const bool corner = (ranks <= 4 || ranks == 8) && (micros <= 3 || micros == 5 || micros == 16);
        for (bool wait : {false, true}) {
          if ((wait || time_scale() > 1) && !corner) continue;
          INFO(info.name << " of " << ranks << " ranks, " << micros << " micro-batches, wait " << wait);
          for (const std::string& e : run_transfers(schedule, true, wait)) CHECK(e == "");
        }
      }
}

TEST_CASE("negative control: links that their first transfer connects wait in a circle") {
  const auto errors = run_transfers(pipeline::make_schedule("1f1b", 2, 1, 1), false, false);
  CHECK_THAT(errors[0] + errors[1],
             Contains(fmt::format("waited {:g} s for the others", 0.3 * time_scale())));
}

TEST_CASE("what waits for others ends when its rank says that it fails") {
  FakeNetwork network;
  std::vector<std::vector<float>> memory(2, std::vector<float>(10));
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = on_world(network, 2, {}, [&](std::shared_ptr<NcclWorld> world, int rank, Stream&) {
    auto link = make_nccl_group(world, {0, 1}, "stage 0 to 1", Axis::pipeline);
    auto stream = make_worker_stream("link");
    link->connect(*stream, 0, 1);
    if (rank == 0) return;
    link->recv(*stream, tensor(memory[1]), 0);  // and rank 0 never sends
    abort_nccl_world(*world, "rank 1 fails: no more data");
    stream.reset();  // waits for enqueued work
    link->check();
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(10 * time_scale()));
  CHECK(errors[0] == "");
  CHECK(errors[1] == "rank 1 fails: no more data");
  CHECK(network.alive() == 0);
}

TEST_CASE("all groups are aborted at once, whichever waits behind which") {
  FakeNetwork network;
  NcclOptions options;
  options.timeout_seconds = 0.5 * time_scale();
  std::vector<std::vector<float>> memory(2, std::vector<float>(10));
  const auto begin = std::chrono::steady_clock::now();
  const auto errors =
      on_world(network, 2, options, [&](std::shared_ptr<NcclWorld> world, int rank, Stream& s) {
        auto first = make_nccl_group(world, {0, 1}, "tensor", Axis::tensor),
             second = make_nccl_group(world, {0, 1}, "gradient", Axis::data);
        const Tensor t = tensor(memory[static_cast<size_t>(rank)]);
        for (Communicator* c : {first.get(), second.get()}) c->all_reduce(s, t);
        s.synchronize();
        if (rank == 1) {
          std::this_thread::sleep_for(std::chrono::duration<double>(3 * options.timeout_seconds));
          return;
        }
        second->all_reduce(s, t);  // rank 1 does not come
        first->all_reduce(s, t);   // and this waits behind it
        s.synchronize();
        first->check();
      });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(10 * time_scale()));
  CHECK_THAT(errors[0], Contains("waited") && Contains("for the others"));
}

TEST_CASE("a rank that never comes ends the making of a world, and of a group, at the deadline") {
  NcclOptions options;
  options.connect_timeout_seconds = 0.4 * time_scale();
  {
    FakeNetwork network;
    auto store = make_memory_store();
    CHECK_THROWS_WITH(make_nccl_world(network.open(), *store, "nccl", 0, 2, options),
                      Contains("rank 0 of 2 connects to the others: not done in"));
    CHECK(network.alive() == 0);
  }
  FakeNetwork network;
  const auto errors = on_world(network, 2, options, [&](std::shared_ptr<NcclWorld> world, int rank, Stream&) {
    if (rank == 0) make_nccl_group(world, {0, 1}, "data", Axis::data);
  });
  CHECK_THAT(errors[0], Contains("rank 0 makes the group \"data\" with the others: not done in"));
  CHECK(errors[1] == "");
}
