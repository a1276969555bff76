// The quorum of replicas: who takes part in a step, whether it counts, and whose state is copied.
#include "runtime/replicas/quorum.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "base/error.h"
#include "base/time_scale.h"

using namespace ltrain;
using Catch::Contains;

namespace {

struct Job {
  explicit Job(int replicas, int least = 1, double timeout = 30, double join = 30)
      : quorum({.replicas = replicas,
                .least = least,
                .timeout_seconds = timeout * time_scale(),
                .join_seconds = join * time_scale(),
                .log = {}}) {
    for (int r = 0; r < replicas; ++r) connection.push_back(quorum.arrive(r));
  }

  std::future<Membership> vote(Vote v) {
    return std::async(std::launch::async, [this, v] {
      return quorum.vote(v, connection[static_cast<size_t>(v.replica)], [] { return true; });
    });
  }
  /// All members vote that step `step` + 1 is complete, or one that it is not.
  std::vector<Membership> step(const Membership& m, int incomplete = -1) {
    std::vector<std::future<Membership>> votes;
    for (const int r : m.members)
      votes.push_back(vote({.replica = r,
                            .epoch = m.epoch,
                            .step = m.step,
                            .complete = r != incomplete,
                            .after = AfterStep::stays}));
    std::vector<Membership> all;
    for (auto& v : votes) all.push_back(v.get());
    return all;
  }
  std::vector<Membership> join(std::vector<int64_t> steps) {
    std::vector<std::future<Membership>> votes;
    for (size_t r = 0; r < steps.size(); ++r)
      votes.push_back(vote({.replica = static_cast<int>(r),
                            .epoch = 0,
                            .step = steps[r],
                            .complete = false,
                            .after = AfterStep::stays}));
    std::vector<Membership> all;
    for (auto& v : votes) all.push_back(v.get());
    return all;
  }

  Quorum quorum;
  std::vector<int64_t> connection;
};

std::vector<int> ids(std::initializer_list<int> all) { return all; }

}  // namespace

TEST_CASE("quorum: replicas begin with the newest state, which the others copy") {
  Job job(3);
  for (const Membership& m : job.join({4, 8, 8})) {
    CHECK(m.members == ids({0, 1, 2}));
    CHECK(m.step == 8);
    CHECK(m.source == 1);
    CHECK(m.behind == ids({0}));
    CHECK_FALSE(m.counts);
  }
}

TEST_CASE("quorum: a step counts for all replicas or for none") {
  Job job(2);
  Membership m = job.join({0, 0})[0];
  const int64_t epoch = m.epoch;
  const auto whole = job.step(m);
  for (const Membership& after : whole) {
    CHECK(after.counts);
    CHECK(after.step == 1);
    CHECK(after.epoch == epoch);  // the groups stay
  }
  const auto broken = job.step(whole[0], 1);
  for (const Membership& after : broken) {
    CHECK_FALSE(after.counts);
    CHECK(after.step == 1);
    CHECK(after.epoch > epoch);
    CHECK(after.behind.empty());
  }
}

TEST_CASE("quorum: a replica that dies undoes no step that it voted for, and stops none") {
  const bool votes_first = GENERATE(true, false);
  Job job(3);
  const Membership m = job.join({5, 5, 5})[0];
  std::future<Membership> lost;
  std::atomic<bool> alive{true}, waits{false};
  if (votes_first)
    lost = std::async(std::launch::async, [&] {
      return job.quorum.vote(
          {.replica = 2, .epoch = m.epoch, .step = 5, .complete = true, .after = AfterStep::stays},
          job.connection[2], [&] {
            waits = true;
            return alive.load();
          });
    });
  auto first =
      job.vote({.replica = 0, .epoch = m.epoch, .step = 5, .complete = true, .after = AfterStep::stays});
  while (votes_first && !waits) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  alive = false;
  job.quorum.depart(2, job.connection[2]);
  if (votes_first) CHECK_THROWS_WITH(lost.get(), Contains("the connection of replica 2 has ended"));
  auto second =
      job.vote({.replica = 1, .epoch = m.epoch, .step = 5, .complete = true, .after = AfterStep::stays});
  for (const Membership& after : {first.get(), second.get()}) {
    CHECK(after.counts);
    CHECK(after.step == 6);
    CHECK(after.members == ids({0, 1}));
    CHECK(after.epoch > m.epoch);
  }
}

TEST_CASE("quorum: a replica that joins takes part in the next step with the state of another one") {
  Job job(2);
  Membership m = job.join({0, 0})[0];
  job.quorum.depart(1, job.connection[1]);
  m = job.step({.epoch = m.epoch, .counts = false, .step = 0, .source = 0, .members = {0}, .behind = {}})[0];
  CHECK(m.members == ids({0}));
  job.connection[1] = job.quorum.arrive(1);
  auto joins = job.vote({.replica = 1, .epoch = 0, .step = 0, .complete = false, .after = AfterStep::stays});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Membership after = job.step(m)[0];
  CHECK(after.counts);
  CHECK(after.step == 2);
  CHECK(after.members == ids({0, 1}));
  CHECK(after.behind == ids({1}));
  const Membership joined = joins.get();
  CHECK_FALSE(joined.counts);
  CHECK(joined.epoch == after.epoch);
}

TEST_CASE("quorum: a replica that is silent for too long is left out, and joins again with another state") {
  Job job(2, 1, 0.2);
  const Membership m = job.join({0, 0})[0];
  const Membership alone =
      job.vote({.replica = 0, .epoch = m.epoch, .step = 0, .complete = true, .after = AfterStep::stays})
          .get();
  CHECK(alone.counts);
  CHECK(alone.members == ids({0}));
  auto late =
      job.vote({.replica = 1, .epoch = m.epoch, .step = 0, .complete = true, .after = AfterStep::stays});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Membership after = job.step(alone)[0];
  CHECK(after.behind == ids({1}));
  CHECK_FALSE(late.get().counts);  // its step was made without it
}

TEST_CASE("quorum: too few replicas, or none with a state, end the job by name") {
  Job job(3, 2, 30, 0.2);
  Membership m = job.join({0, 0, 0})[0];
  job.quorum.depart(1, job.connection[1]);
  job.quorum.depart(2, job.connection[2]);
  auto alone =
      job.vote({.replica = 0, .epoch = m.epoch, .step = 0, .complete = true, .after = AfterStep::stays});
  CHECK_THROWS_WITH(alone.get(), Contains("1 of the 2 replicas that a step needs (replicas.min)"));
  Job broken(1);
  auto without =
      broken.vote({.replica = 0, .epoch = 0, .step = -1, .complete = false, .after = AfterStep::stays});
  CHECK_THROWS_WITH(without.get(), Contains("no replica is left whose state is complete"));
}

TEST_CASE("quorum: a replica that leaves gets its answer, and the others go on without it") {
  Job job(2);
  const Membership m = job.join({0, 0})[0];
  auto leaves =
      job.vote({.replica = 1, .epoch = m.epoch, .step = 0, .complete = true, .after = AfterStep::leaves});
  auto stays =
      job.vote({.replica = 0, .epoch = m.epoch, .step = 0, .complete = true, .after = AfterStep::stays});
  CHECK(leaves.get().counts);
  const Membership after = stays.get();
  CHECK(after.counts);
  CHECK(after.members == ids({0}));
}

TEST_CASE("quorum: a replica that comes back when the job is done does not begin anew") {
  Job job(2);
  const Membership m = job.join({0, 0})[0];
  auto a = job.vote({.replica = 0, .epoch = m.epoch, .step = 0, .complete = true, .after = AfterStep::done});
  auto b = job.vote({.replica = 1, .epoch = m.epoch, .step = 0, .complete = true, .after = AfterStep::done});
  const bool counts_a = a.get().counts, counts_b = b.get().counts;
  CHECK((counts_a && counts_b));
  job.quorum.depart(0, job.connection[0]), job.quorum.depart(1, job.connection[1]);
  job.connection[1] = job.quorum.arrive(1);
  CHECK(job.vote({.replica = 1, .epoch = 0, .step = 0, .complete = false, .after = AfterStep::stays})
            .get()
            .done);
}

TEST_CASE("quorum: after the last member is lost, all replicas may bring their checkpoints") {
  Job job(2);
  const Membership m = job.join({8, 8})[0];
  for (const int r : {0, 1}) job.quorum.depart(r, job.connection[static_cast<size_t>(r)]);
  for (const int r : {0, 1}) job.connection[static_cast<size_t>(r)] = job.quorum.arrive(r);
  auto first = job.vote({.replica = 1, .epoch = 0, .step = 0, .complete = false, .after = AfterStep::stays});
  CHECK(first.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  auto second = job.vote({.replica = 0, .epoch = 0, .step = 4, .complete = false, .after = AfterStep::stays});
  for (const Membership& after : {first.get(), second.get()}) {
    CHECK(after.step == 4);
    CHECK(after.behind == ids({1}));
    CHECK(after.epoch > m.epoch);
  }
}

TEST_CASE("quorum: a value is waited for no longer once a replica is gone") {
  Job job(2);
  const Membership m = job.join({0, 0})[0];
  job.quorum.set(m.epoch, "a", "1");
  CHECK(job.quorum.get(m.epoch, "a", 5, [] { return true; }) == "1");
  auto waits =
      std::async(std::launch::async, [&] { return job.quorum.get(m.epoch, "b", 60, [] { return true; }); });
  job.quorum.depart(1, job.connection[1]);
  CHECK_THROWS_WITH(waits.get(), Contains("a replica is gone"));
}
