// Negative controls of the stand-in for NCCL: it is driven as groups once drove NCCL, or as they must not,
// and has to fail as NCCL does. What a caller gets right on it says something only because of these.
#include "tests/support/fake_nccl.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <thread>

#include "base/time_scale.h"
#include "parallel/nccl/communicator_nccl.h"
#include "tests/parallel/group_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;
using nccl::Comm;
using nccl::Library;
using nccl::Status;

namespace {

/// A call on a thread of its own, of which is seen whether it has come back.
class Call {
 public:
  explicit Call(std::function<Status()> call)
      : thread_([this, call = std::move(call)] {
          status_ = call();
          done_ = true;
        }) {}
  ~Call() {
    if (thread_.joinable()) thread_.join();
  }
  /// Has not come back in the time in which any call that waits for nobody has.
  bool blocks() const {
    std::this_thread::sleep_for(std::chrono::duration<double>(0.15 * time_scale()));
    return !done_;
  }
  Status status() {
    thread_.join();
    return status_;
  }

 private:
  std::atomic<bool> done_{false};
  Status status_;
  std::thread thread_;
};

/// Two ranks, each with its library, a communicator of both and a stream.
struct Pair {
  explicit Pair(bool early = false) {
    const nccl::UniqueId id = (opened[0] = network.open(early))->unique_id();
    opened[1] = network.open(early);
    Call other([&] { return opened[1]->init(comm[1], 2, id, 1); });
    CHECK(!opened[0]->init(comm[0], 2, id, 0).failed);
    CHECK(!other.status().failed);
  }
  ~Pair() {
    Call other([&] { return end(1); });
    end(0);
    other.status();
    for (auto& s : stream) s.reset();
  }
  /// The sum of both ranks' `data`.
  Status sum(int rank, Comm c) {
    return opened[rank]->all_reduce(c, *stream[rank], data[rank].data(), 4, DType::f32, ReduceOp::sum);
  }
  Status sum(int rank) { return sum(rank, comm[rank]); }
  /// Both ranks are connected, as the first call does it.
  void connect() {
    Call other([&] { return sum(1); });
    CHECK(!sum(0).failed);
    CHECK(!other.status().failed);
    for (auto& s : stream) s->synchronize();
    for (auto& d : data) d.assign(4, 1);
  }
  Status end(int rank) {
    if (comm[rank]) opened[rank]->abort({comm[rank]});
    return {};
  }

  FakeNetwork network;
  std::vector<float> data[2] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  std::shared_ptr<Library> opened[2];
  std::unique_ptr<Stream> stream[2] = {make_worker_stream("0"), make_worker_stream("1")};
  Comm comm[2] = {};
};

}  // namespace

TEST_CASE("negative control: a child that is taken when the split returns is none yet") {
  Pair p(true);
  Comm child[2] = {};
  // Each returns success, alone.
  CHECK(!p.opened[0]->split(child[0], p.comm[0], 0, 0, 0).failed);
  const Comm taken = child[0];
  CHECK(taken == nullptr);
  CHECK(!p.opened[0]->state(p.comm[0]).failed);
  CHECK(child[0] == nullptr);
  CHECK(!p.opened[1]->split(child[1], p.comm[1], 0, 1, 0).failed);
  // It is written where the call was told to, which must still be there, and a copy knows nothing of it.
  p.opened[0]->state(p.comm[0]);
  CHECK(child[0] != nullptr);
  CHECK(taken == nullptr);
  p.opened[0]->abort({child[0]});
}

TEST_CASE("negative control: a group of NCCL that returns early is refused by name") {
  FakeNetwork network;
  auto store = make_memory_store();
  std::string said;
  const auto rank = [&](int r) {
    auto world = make_nccl_world(network.open(true), *store, "nccl", r, 2, {});
    if (r == 1) return Status{};
    try {
      make_nccl_group(world, {0, 1}, "tensor", Axis::tensor);
    } catch (const std::exception& e) {
      said = e.what();
    }
    return Status{};
  };
  Call other([&] { return rank(1); });
  rank(0);
  other.status();
  CHECK_THAT(said, Contains("expected a communicator of the group \"tensor\" from NCCL, got none"));
}

TEST_CASE("negative control: a child that is read while its split blocks is none yet") {
  Pair p;
  Comm child[2] = {};
  Call split([&] { return p.opened[0]->split(child[0], p.comm[0], 0, 0, 0); });
  CHECK(split.blocks());
  CHECK(std::atomic_ref(child[0]).load() == nullptr);
  CHECK(!p.opened[1]->split(child[1], p.comm[1], 0, 1, 0).failed);
  CHECK(!split.status().failed);
  CHECK(child[0] != nullptr);
  for (int r : {0, 1}) p.opened[r]->abort({child[r]});
}

TEST_CASE("negative control: the first call of a pair blocks the host until the other has come") {
  Pair p;
  Call first([&] { return p.sum(0); });
  CHECK(first.blocks());
  CHECK(!p.sum(1).failed);
  CHECK(!first.status().failed);
  for (auto& s : p.stream) s->synchronize();
  // The second does not.
  CHECK(!p.sum(0).failed);
  CHECK(!p.sum(1).failed);
  for (auto& s : p.stream) s->synchronize();
}

TEST_CASE("negative control: what a call returns before it is done is not the sum") {
  Pair p;
  p.connect();
  CHECK(!p.sum(0).failed);
  CHECK(p.data[0] == std::vector<float>(4, 1));  // rank 1 has not come: nobody can have summed
  CHECK(!p.sum(1).failed);
  for (auto& s : p.stream) s->synchronize();
  CHECK(p.data[0] == std::vector<float>(4, 2));
}

TEST_CASE("negative control: groups that are aborted one after the other wait for each other") {
  Pair p;
  p.connect();
  Comm second[2] = {};
  Call other([&] { return p.opened[1]->split(second[1], p.comm[1], 0, 1, 0); });
  CHECK(!p.opened[0]->split(second[0], p.comm[0], 0, 0, 0).failed);
  CHECK(!other.status().failed);
  Call meets([&] { return p.sum(1, second[1]); });
  CHECK(!p.sum(0, second[0]).failed);
  CHECK(!meets.status().failed);
  for (auto& s : p.stream) s->synchronize();
  // On one stream a call of the second, to which rank 1 does not come, and behind it one of the first.
  CHECK(!p.sum(0, second[0]).failed);
  CHECK(!p.sum(0).failed);
  Call one([&] { return p.end(0); });
  CHECK(one.blocks());
  p.opened[0]->abort({second[0]});
  one.status();
  p.opened[1]->abort({second[1]});
  p.comm[0] = nullptr;
}

TEST_CASE("negative control: an abort waits for what its own thread is still to end") {
  Pair p;
  p.connect();
  std::atomic<bool> go{false};
  // A kernel that waits for the host, and a call behind it: had the host aborted here, neither would end.
  p.stream[0]->launch([&] {
    while (!go) std::this_thread::yield();
  });
  CHECK(!p.sum(0).failed);
  Call abort([&] { return p.end(0); });
  CHECK(abort.blocks());
  go = true;
  abort.status();
  p.comm[0] = nullptr;
}

TEST_CASE("negative control: a group is not destroyed while a peer of its calls is gone") {
  Pair p;
  p.connect();
  CHECK(!p.sum(0).failed);
  p.network.lose(1);
  CHECK(p.opened[0]->state(p.comm[0]).failed);
  Call destroyed([&] {
    p.opened[0]->destroy(p.comm[0]);
    return Status{};
  });
  CHECK(destroyed.blocks());
  p.end(0);
  destroyed.status();
  p.comm[0] = nullptr;
}

TEST_CASE("negative control: two threads in calls of one rank") {
  Pair p;
  Comm child = nullptr;
  Call split([&] { return p.opened[0]->split(child, p.comm[0], 0, 0, 0); });
  CHECK(split.blocks());
  CHECK(p.sum(0).text == "a call while another thread is in one");
  CHECK(!p.opened[0]->state(p.comm[0]).failed);  // any thread may query the state
  p.end(0);
  CHECK(split.status().text == "aborted");
  p.comm[0] = nullptr;
}

TEST_CASE("negative control: a rank that says nothing of its failure is waited for until the deadline") {
  FakeNetwork network;
  NcclOptions options;
  options.timeout_seconds = 0.4 * time_scale();
  auto store = make_memory_store();
  std::vector<float> memory(10);
  std::string said;
  const auto rank = [&](int r) {
    auto world = make_nccl_world(network.open(), *store, "nccl", r, 2, options);
    auto link = make_nccl_group(world, {0, 1}, "stage 0 to 1", Axis::pipeline);
    auto stream = make_worker_stream("link");
    link->connect(*stream, 0, 1);
    if (r == 0) return Status{};
    link->recv(*stream, tensor(memory), 0);  // and rank 0 never sends
    // Here it fails, and without abort_nccl_world its stream waits for what is enqueued.
    stream.reset();
    try {
      link->check();
    } catch (const std::exception& e) {
      said = e.what();
    }
    return Status{};
  };
  Call other([&] { return rank(0); });
  rank(1);
  other.status();
  CHECK_THAT(said, Contains(fmt::format("waited {:g} s for the others", options.timeout_seconds)));
}
