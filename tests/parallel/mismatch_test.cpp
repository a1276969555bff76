#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>

#include "base/time_scale.h"
#include "parallel/comm/communicator_gloo.h"
#include "tests/parallel/group_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Matchers::Contains;

namespace {
double seconds_of(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
}  // namespace

TEST_CASE("ranks with different sizes all fail, naming operation, number and both counts") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm})
    for (int size : {2, 4}) {
      std::vector<std::string> errors;
      const double took = seconds_of([&] {
        errors = try_ranks(kind, size, [&](Communicator& c, Stream& s) {
          std::vector<float> v(100000), w(c.rank() == 1 ? 100001 : 100000);
          c.all_reduce(s, tensor(v));
          c.all_reduce(s, tensor(w));
        });
      });
      CHECK(took < 5 * time_scale());
      for (const std::string& e : errors) {
        CHECK_THAT(e, Contains("all_reduce #2 of 100000 f32") && Contains("all_reduce #2 of 100001 f32"));
        CHECK_THAT(e, Contains("rank 1 entered"));
      }
    }
}

TEST_CASE("a rank that leaves out a collective makes all ranks fail") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm}) {
    const auto errors = try_ranks(kind, 3, [&](Communicator& c, Stream& s) {
      std::vector<double> v(300);
      std::vector<double> part(100);
      if (c.rank() != 2) c.all_reduce(s, tensor(v));
      c.reduce_scatter(s, tensor(part), tensor(v));
    });
    for (const std::string& e : errors)
      CHECK_THAT(
          e, Contains("rank 2 entered reduce_scatter #1 of 300 f64") && Contains("all_reduce #1 of 300 f64"));
  }
}

TEST_CASE("other dtype, other reduction, other root") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm}) {
    auto errors = try_ranks(kind, 2, [&](Communicator& c, Stream& s) {
      std::vector<float> v(8);
      std::vector<int32_t> w(8);
      if (c.rank() == 0)
        c.all_reduce(s, tensor(v));
      else
        c.all_reduce(s, tensor(w));
    });
    for (const auto& e : errors) CHECK_THAT(e, Contains("8 f32") && Contains("8 i32"));
    errors = try_ranks(kind, 2, [&](Communicator& c, Stream& s) {
      std::vector<float> v(8);
      c.all_reduce(s, tensor(v), c.rank() ? ReduceOp::max : ReduceOp::sum);
    });
    for (const auto& e : errors) CHECK_THAT(e, Contains("(max)"));
    errors = try_ranks(kind, 2, [&](Communicator& c, Stream& s) {
      std::vector<float> v(8);
      c.broadcast(s, tensor(v), c.rank());
    });
    for (const auto& e : errors) CHECK_THAT(e, Contains("from rank 0") && Contains("from rank 1"));
  }
}

TEST_CASE("all_to_all_v with row counts that do not meet") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm}) {
    const auto errors = try_ranks(kind, 2, [&](Communicator& c, Stream& s) {
      std::vector<float> in(40), out(40);
      // Rank 0 sends 3 rows to rank 1, which expects 2.
      const std::vector<int64_t> in_rows =
          c.rank() == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{1, 1};
      const std::vector<int64_t> out_rows =
          c.rank() == 0 ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{2, 1};
      c.all_to_all_v(s, tensor(out, {10, 4}), out_rows, tensor(in, {10, 4}), in_rows);
    });
    CHECK_THAT(errors[1], Contains("rank 0 sends 12 elements to rank 1, which expects 8"));
  }
}

TEST_CASE("a message of another size is refused by its receiver") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm}) {
    const auto errors = try_ranks(
        kind, 2,
        [&](Communicator& c, Stream& s) {
          std::vector<float> a(8), b(9);
          if (c.rank() == 0)
            c.send(s, tensor(a), 1);
          else
            c.recv(s, tensor(b), 0);
        },
        2);
    CHECK_THAT(errors[1], Contains("rank 0") && Contains("rank 1"));
  }
}

TEST_CASE("a rank that leaves makes the others fail at once, and says which") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm}) {
    std::vector<std::string> errors;
    const double took = seconds_of([&] {
      errors = try_ranks(kind, 3, [&](Communicator& c, Stream& s) {
        std::vector<float> v(1000);
        c.all_reduce(s, tensor(v));
        if (c.rank() == 1) return;
        c.all_reduce(s, tensor(v));
      });
    });
    CHECK(took < 3 * time_scale());
    CHECK(errors[1].empty());
    CHECK_THAT(errors[0], Contains("rank 1"));
    CHECK_THAT(errors[2], Contains("rank 1"));
  }
}

TEST_CASE("a rank that comes late, when another has already failed, blames the one that left") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm}) {
    const auto errors = try_ranks(kind, 3, [&](Communicator& c, Stream& s) {
      std::vector<float> v(1000);
      c.all_reduce(s, tensor(v));
      if (c.rank() == 1) return;
      if (c.rank() == 2) std::this_thread::sleep_for(std::chrono::duration<double>(0.3 * time_scale()));
      c.all_reduce(s, tensor(v));
    });
    CHECK_THAT(errors[0], Contains("rank 1"));
    CHECK_THAT(errors[2], Contains("rank 1"));
  }
}

TEST_CASE("bytes sent to a rank that has left are an error, not a signal, a handler that is there stays") {
  const auto before = ::signal(SIGPIPE, SIG_DFL);
  make_gloo_transport("127.0.0.1");
  CHECK(::signal(SIGPIPE, [](int) {}) == SIG_IGN);
  make_gloo_transport("127.0.0.1");
  CHECK(::signal(SIGPIPE, before) != SIG_IGN);
}

TEST_CASE("a rank that never comes ends the wait at the timeout") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm}) {
    std::vector<std::string> errors;
    const double took = seconds_of([&] {
      errors = try_ranks(
          kind, 2,
          [&](Communicator& c, Stream& s) {
            std::vector<float> v(1000);
            if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(1.2 * time_scale()));
            c.all_reduce(s, tensor(v));
          },
          0.3 * time_scale());
    });
    CHECK(took < 5 * time_scale());
    CHECK_THAT(errors[0], Contains(fmt::format("waited {:g} s", 0.3 * time_scale())) &&
                              Contains("all_reduce #1 of 1000 f32"));
    CHECK_FALSE(errors[1].empty());
  }
}

TEST_CASE("a broken group stays broken") {
  for (Kind kind : {Kind::in_process, Kind::gloo, Kind::shm}) {
    const auto errors = try_ranks(kind, 2, [&](Communicator& c, Stream& s) {
      std::vector<float> v(4 + c.rank()), w(4);
      try {
        c.all_reduce(s, tensor(v));
      } catch (const Error&) {
      }
      c.all_reduce(s, tensor(w));
    });
    for (const auto& e : errors) CHECK_THAT(e, Contains("after an earlier failure"));
  }
}
