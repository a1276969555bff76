// Collectives of a group: where they come between the work of a stream.
#include "parallel/mesh/group.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <future>

#include "tests/parallel/group_support.h"
#include "tests/parallel/must.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Longer than a stream takes that does not wait; longest on the last rank.
void pause(int rank) { std::this_thread::sleep_for(std::chrono::milliseconds(20 + 60 * rank)); }

/// body(group, compute) on each of two ranks, whose groups and computing streams are workers.
void on_two(const std::function<void(const Group&, Stream&)>& body) {
  on_ranks(Kind::in_process, 2, [&](Communicator& c, Stream&) {
    const auto comm = make_worker_stream("comm"), compute = make_worker_stream("compute");
    body(Group(&c, comm.get()), *compute);
  });
}

}  // namespace

TEST_CASE("a collective comes after what its stream was given before, and before what it is given later") {
  on_two([](const Group& g, Stream& compute) {
    std::vector<double> v{0};
    double seen = 0;
    compute.launch([&] {
      pause(g.rank());
      v[0] = 1 + g.rank();
    });
    g.all_reduce(compute, tensor(v));
    compute.launch([&] { seen = v[0]; });
    compute.synchronize();
    must(seen == 3, fmt::format("rank {} saw {}", g.rank(), seen));
  });
}

TEST_CASE("a stream goes on beside a collective that it has started, until it waits") {
  std::promise<void> begun;
  std::future<void> other = begun.get_future();
  on_two([&](const Group& g, Stream& compute) {
    std::vector<double> v{1.0 + g.rank()};
    double seen = 0;
    if (g.rank() == 1) compute.launch([&] { other.wait(); });  // for what rank 0 does after its start
    const AsyncHandle sum = g.start_all_reduce(compute, tensor(v));
    if (g.rank() == 0) compute.launch([&] { begun.set_value(); });
    if (g.rank() == 1) pause(1);
    sum.wait(compute);
    compute.launch([&] { seen = v[0]; });
    compute.synchronize();
    must(seen == 3, fmt::format("rank {} saw {}", g.rank(), seen));
  });
}

TEST_CASE("several collectives and the work between them run in their order, as one") {
  on_two([](const Group& g, Stream& compute) {
    std::vector<double> own{0}, all(2);
    double seen = 0;
    compute.launch([&] {
      pause(g.rank());
      own[0] = 1 + g.rank();
    });
    const AsyncHandle done = g.start(compute, [&](Stream& on) {
      g.all_gather(on, tensor(all), tensor(own));
      on.launch([&] {
        pause(g.rank());
        all[0] *= 10;
      });
      g.all_reduce(on, tensor(all));
    });
    done.wait(compute);
    compute.launch([&] { seen = all[0] + all[1]; });
    compute.synchronize();
    must(seen == 20 + 4, fmt::format("rank {} saw {}", g.rank(), seen));
  });
}

TEST_CASE("work of a group comes after what a handle of another stream stands for") {
  on_two([](const Group& g, Stream& compute) {
    const auto other = make_worker_stream("other");
    std::vector<double> v{0};
    other->launch([&] {
      pause(g.rank());
      v[0] = 1 + g.rank();
    });
    g.start(AsyncHandle(other->record()), [&](Stream& on) { g.all_reduce(on, tensor(v)); }).wait(compute);
    compute.synchronize();
    must(v[0] == 3, fmt::format("rank {} has {}", g.rank(), v[0]));
  });
}

TEST_CASE("a group of one leaves a sum as it is, and a handle of nothing holds nothing up") {
  const auto single = make_single_group("single", Axis::data);
  const auto comm = make_worker_stream("comm"), compute = make_worker_stream("compute");
  const Group g(single.get(), comm.get());
  std::vector<double> v{7};
  g.all_reduce(*compute, tensor(v));
  AsyncHandle().wait(*compute);
  compute->synchronize();
  CHECK(v[0] == 7);
  CHECK(single->completed() == 0);
}
