#include "kernels/tensor/stream.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/meta/meta.h"

using namespace ltrain;

namespace {
OpCost work(const char* name) {
  OpCost c;
  c.name = name;
  return c;
}
void nap(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }
}  // namespace

TEST_CASE("a worker stream runs its work in order, on one other thread") {
  auto stream = make_worker_stream("comm");
  std::vector<int> order;  // only the worker writes: under ThreadSanitizer a second thread would show
  std::thread::id worker;
  for (int i = 0; i < 200; ++i)
    stream->launch([&, i] {
      worker = std::this_thread::get_id();
      order.push_back(i);
    });
  stream->synchronize();
  REQUIRE(order.size() == 200);
  for (int i = 0; i < 200; ++i) CHECK(order[i] == i);
  CHECK(worker != std::this_thread::get_id());
}

TEST_CASE("an inline stream runs where it is called") {
  auto stream = make_inline_stream("compute");
  std::thread::id ran;
  stream->launch([&] { ran = std::this_thread::get_id(); });
  CHECK(ran == std::this_thread::get_id());
  CHECK_THROWS_WITH(stream->launch([] { fail(ExitCode::data, "at once"); }), "at once");
}

TEST_CASE("an event orders two streams, and only through it may data cross") {
  auto compute = make_inline_stream("compute");
  auto comm = make_worker_stream("comm"), copy = make_worker_stream("copy");
  std::vector<int> data(1000);  // plain memory: ThreadSanitizer proves that the events order every access
  for (int round = 1; round <= 50; ++round) {
    compute->launch([&] {
      for (int& v : data) v = round;
    });
    comm->wait(compute->record());
    comm->launch([&] {
      for (int& v : data) v *= 2;
    });
    copy->wait(comm->record());
    copy->launch([&] {
      for (int& v : data) v += 1;
    });
    compute->wait(copy->record());
    for (int v : data) REQUIRE(v == 2 * round + 1);
  }
}

TEST_CASE("work on two streams overlaps") {
  auto a = make_worker_stream("a"), b = make_worker_stream("b");
  // Each waits for the other to have started: a deadlock unless both run at once.
  std::atomic<int> started{0};
  const auto meet = [&] {
    ++started;
    for (int i = 0; i < 5000 && started < 2; ++i) nap(1);
  };
  a->launch(meet);
  b->launch(meet);
  a->synchronize();
  b->synchronize();
  CHECK(started == 2);
}

TEST_CASE("an inline stream counts the time that it waited, by what it waited for") {
  auto compute = make_inline_stream("compute");
  auto comm = make_worker_stream("comm"), copy = make_worker_stream("copy");
  comm->last_axes = Axis::tensor;
  comm->launch([] { nap(30); });
  compute->wait(comm->record());
  CHECK(compute->waited().at(Axis::tensor) >= 0.025);
  copy->launch([] { nap(20); });  // a stream without a group: offloading
  compute->wait(copy->record());
  CHECK(compute->waited().at({}) >= 0.015);
  const Stream::Waits before = compute->waited();
  CHECK(before.size() == 2);
  compute->wait(Event());  // has happened
  CHECK(compute->waited() == before);
}

TEST_CASE("a failure stops the rest of the queue and is thrown where somebody waits") {
  auto compute = make_inline_stream("compute");
  auto comm = make_worker_stream("comm"), copy = make_worker_stream("copy");
  std::atomic<int> ran{0};
  comm->launch([&] { ++ran; });
  comm->launch([] { fail(ExitCode::rank_lost, "rank 3 is gone"); });
  comm->launch([&] { ++ran; });
  const Event after = comm->record();
  CHECK_THROWS_WITH(compute->wait(after), "rank 3 is gone");
  CHECK_THROWS_WITH(comm->synchronize(), "rank 3 is gone");
  CHECK(ran == 1);
  // Through a third stream as well.
  copy->wait(after);
  copy->launch([&] { ++ran; });
  CHECK_THROWS_WITH(copy->synchronize(), "rank 3 is gone");
  CHECK(ran == 1);
  // An event from before the failure does not throw.
  auto other = make_worker_stream("other");
  other->launch([] {});
  const Event fine = other->record();
  other->launch([] { fail(ExitCode::data, "late"); });
  CHECK_NOTHROW(compute->wait(fine));
}

TEST_CASE("a stream with work left finishes it when it is destroyed") {
  std::atomic<int> ran{0};
  {
    auto stream = make_worker_stream("comm");
    for (int i = 0; i < 20; ++i)
      stream->launch([&] {
        nap(1);
        ++ran;
      });
  }
  CHECK(ran == 20);
}

TEST_CASE("ops that are alike are priced once, and others each") {
  struct Counts final : CostModel {
    explicit Counts(bool each) : each(each) {}
    bool sees_each() const override { return each; }
    double seconds(const OpCost& op) const override { return ++asked, op.bytes + static_cast<double>(op.m); }
    double stolen_seconds(const OpCost& op) const override { return ++stolen, 0.5; }
    bool each;
    mutable int asked = 0, stolen = 0;
  };
  for (const bool each : {false, true}) {
    const Counts cost(each);
    MetaTrace trace(&cost);
    auto compute = make_meta_stream("compute", trace), comm = make_meta_stream("comm", trace);
    trace.set_compute(compute.get());
    std::vector<OpCost> ops(5, work("a"));
    ops[1].bytes += 1, ops[2].m = 3, ops[3].name = "b", ops[4].received_bytes = 2;
    double sum = 0;
    for (int times = 0; times < 3; ++times)
      for (const OpCost& op : ops) {
        trace.add(*compute, op);
        sum += op.bytes + static_cast<double>(op.m);
      }
    CHECK(compute->clock == sum);
    CHECK(cost.asked == (each ? 15 : 5));
    // A collective takes time from the compute stream each time, and from its own stream none.
    OpCost call = work("all_reduce");
    call.cls = OpClass::collective;
    trace.add(*compute, call);
    sum += call.bytes;
    CHECK(compute->clock == sum);
    for (int times = 0; times < 2; ++times) trace.add(*comm, call);
    CHECK(compute->clock == sum + 1);
    CHECK(cost.stolen == (each ? 2 : 1));
  }
}

TEST_CASE("on meta a stream is a timeline") {
  struct TwoSeconds final : CostModel {
    double seconds(const OpCost&) const override { return 2; }
  } cost;
  MetaTrace trace(&cost);
  auto compute = make_meta_stream("compute", trace), comm = make_meta_stream("comm", trace);
  const AxisSet tensor = Axis::tensor;
  comm->last_axes = tensor;  // placements after a collective of a tensor-parallel group
  trace.add(*compute, work("a"));
  comm->wait(compute->record());
  trace.add(*comm, work("b"));
  trace.add(*compute, work("c"));
  CHECK(compute->clock == 4);
  CHECK(comm->clock == 4);
  compute->wait(comm->record());  // both end at 4: nothing is exposed
  CHECK(compute->waited().empty());
  trace.add(*comm, work("d"));
  compute->wait(comm->record());
  CHECK(compute->waited().at(tensor) == 2);
  comm->last_axes = AxisSet(Axis::data);
  trace.add(*comm, work("e"));
  compute->wait(comm->record());
  CHECK(compute->waited().at(tensor) == 2);
  CHECK(compute->waited().at(Axis::data) == 2);
  CHECK_THROWS_WITH(compute->launch([] {}),
                    Catch::Contains("expected no launch on a meta stream, got one on compute"));
}
