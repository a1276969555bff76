// Groups between real processes, over shared memory and over Gloo.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "base/time_scale.h"
#include "tests/parallel/process_support.h"
#include "tests/support/seconds_since.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Matchers::Contains;

namespace {

std::vector<int> in_processes(int size, const RankBody& body) { return Processes(size, body).wait(); }

template <class T>
void sums_are_right(Communicator& c, Stream& s) {
  for (int64_t n : {1, 7, 1000, 300001, 3000000}) {
    auto v = values<T>(c.rank(), n);
    c.all_reduce(s, tensor(v));
    s.synchronize();
    for (int64_t i = 0; i < n; i += n < 5000 ? 1 : 997) {
      float want = 0;
      double wide = 0;
      for (int r = 0; r < c.size(); ++r) {
        const T x = static_cast<T>(static_cast<float>(value(r, i)));
        want += static_cast<float>(x), wide += static_cast<double>(x);
      }
      const T expected =
          std::is_same_v<T, double> ? static_cast<T>(static_cast<float>(wide)) : static_cast<T>(want);
      const bool good = std::is_same_v<T, double> ? static_cast<double>(v[i]) == wide
                                                  : std::memcmp(&v[i], &expected, sizeof(T)) == 0;
      if (!good) throw std::runtime_error(fmt::format("element {} of {} is wrong", i, n));
    }
  }
}

}  // namespace

TEST_CASE("groups between processes sum like the reference") {
  for (const char* transport : {"shm", "gloo"}) {
    const WithTransport with(transport);
    for (int size = 1; size <= 4; ++size)
      CHECK(in_processes(size, [](Job&, Communicator& c, Stream& s) {
              sums_are_right<float>(c, s);
              sums_are_right<bf16>(c, s);
              sums_are_right<double>(c, s);
            }) == std::vector<int>(size, 0));
  }
}

TEST_CASE("groups of a job: any ranks, the same name twice, each its own order") {
  for (const char* transport : {"shm", "gloo"}) {
    const WithTransport with(transport);
    CHECK(in_processes(4, [](Job& job, Communicator&, Stream& s) {
            const int me = job.info().rank;
            for (int round = 0; round < 2; ++round) {
              auto pair = job.new_group("pair", Axis::tensor,
                                        me < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3});
              if (pair->rank() != (me == 1 || me == 2 ? 0 : 1)) throw std::runtime_error("order");
              std::vector<int64_t> v{me};
              pair->all_reduce(s, tensor(v));
              pair->barrier(s);
              if (v[0] != (me < 2 ? 1 : 5)) throw std::runtime_error("sum");
            }
            auto alone = job.new_group("alone", Axis::data, {me});
            if (alone->size() != 1) throw std::runtime_error("alone");
          }) == std::vector<int>(4, 0));
  }
}

TEST_CASE("a killed peer is an error within two seconds, not a hang") {
  for (const char* transport : {"shm", "gloo"}) {
    const WithTransport with(transport);
    const auto begin = std::chrono::steady_clock::now();
    Processes p(3, [](Job& job, Communicator& c, Stream& s) {
      std::vector<float> v(100000);
      for (int i = 0; i < 1000; ++i) {
        if (i == 20 && job.info().rank == 1) ::raise(SIGKILL);
        c.all_reduce(s, tensor(v));
        s.synchronize();
      }
    });
    CHECK(p.wait() == std::vector<int>{9, 1009, 9});
    CHECK(seconds_since(begin) < 5 * time_scale());
    INFO(p.texts);
    CHECK_THAT(p.texts, Contains("group \"world\": rank 0 lost") && Contains("all_reduce #21 of 100000 f32"));
  }
}

TEST_CASE("which transport: shared memory on one host, what LTRAIN_TRANSPORT says, and refusals") {
  const auto uses = [](Transport wanted) {
    return [wanted](Job& job, Communicator&, Stream&) {
      if (job.transport_of("world", {0, 1}) != wanted) throw std::runtime_error("another transport");
    };
  };
  for (const auto& [value, transport] :
       std::vector<std::pair<const char*, Transport>>{{"auto", Transport::shm},
                                                      {"", Transport::shm},
                                                      {"shm", Transport::shm},
                                                      {"gloo", Transport::gloo}}) {
    const WithTransport with(value);
    INFO(value);
    CHECK(in_processes(2, uses(transport)) == std::vector<int>{0, 0});
  }
  const WithTransport with("auto");
  // One rank that will not makes all of the group's ranks use Gloo; asked for shared memory, that is an
  // error.
  const auto rank_1 = [](const char* value) {
    return [value](int rank) {
      if (rank == 1) ::setenv("LTRAIN_TRANSPORT", value, 1);
    };
  };
  CHECK(Processes(2, uses(Transport::gloo), 20, rank_1("gloo")).wait() == std::vector<int>{0, 0});
  const WithTransport shm("shm");
  Processes refused(2, uses(Transport::shm), 1, rank_1("gloo"));
  CHECK(refused.wait()[0] == 9);
  CHECK_THAT(refused.texts, Contains("group \"world\": rank 1 on host") && Contains("has no shared memory"));
  Processes wrong(2, uses(Transport::shm), 1, [](int) { ::setenv("LTRAIN_TRANSPORT", "tcp", 1); });
  CHECK(wrong.wait() == std::vector<int>{9, 9});
  CHECK_THAT(wrong.texts,
             Contains("LTRAIN_TRANSPORT=\"tcp\": must be auto, shm (shared memory) or gloo (TCP)"));
}

TEST_CASE("a choice that the ranks' places do not allow") {
  const WithTransport with("shm");
  const std::vector<RankPlace> apart{{0, "a", "boot 1"}, {3, "b", "boot 2"}};
  CHECK_THROWS_WITH(choose_transport("data", apart),
                    Contains("group \"data\": ranks 0 on host a and 3 on host b cannot share memory"));
  std::vector<RankPlace> many(200, {0, "a", "boot 1"});
  CHECK_THROWS_WITH(choose_transport("data", many), Contains("200 ranks, shared memory serves 128"));
  const WithTransport automatic("auto");
  CHECK(choose_transport("data", apart) == Transport::gloo);
  CHECK(choose_transport("data", many) == Transport::gloo);
  CHECK(choose_transport("data", {{0, "a", ""}, {1, "a", ""}}) == Transport::gloo);
  CHECK(choose_transport("data", {{0, "a", "x"}, {1, "b", "x"}}) == Transport::shm);  // two names of one host
  CHECK(planned_transport({2, 3}, 2) == Transport::shm);
  CHECK(planned_transport({1, 2}, 2) == Transport::gloo);
  CHECK(planned_transport({0, 1, 2}, 4) == Transport::shm);
  CHECK(planned_transport(std::vector<int>(129), 200) == Transport::gloo);
}
