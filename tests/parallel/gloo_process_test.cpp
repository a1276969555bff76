// Gloo between real processes, joined the way ranks of another launcher are: rank 0 hosts the coordinator.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>

#include "runtime/launch/job.h"
#include "runtime/launch/socket.h"
#include "tests/parallel/group_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Runs `body` in `size` processes; the exit codes: 0 for a return, 1000 + signal, 9 with the text printed
/// otherwise.
std::vector<int> in_processes(int size, const std::function<void(Job&, Communicator&, Stream&)>& body) {
  int port = 0;
  std::string error;
  listen_on("127.0.0.1", {0}, &port, &error);
  LaunchEnvironment e;
  e.kind = LaunchEnvironment::Kind::rank;
  e.source = "test", e.world_size = e.local_size = size;
  e.coordinator_host = "127.0.0.1", e.coordinator_ports = {port}, e.token = "token";
  std::vector<pid_t> children;
  for (int r = 0; r < size; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int code = 0;
      try {
        JobOptions o;
        e.rank = e.local_rank = r;
        o.environment = e;
        o.collective_timeout_seconds = 20;
        auto job = Job::join(o);
        auto stream = make_worker_stream("comm");
        {
          auto group = job->new_world_group();
          body(*job, *group, *stream);
          group->barrier(*stream);
        }
        job->finish();
      } catch (const std::exception& x) {
        code = 9;
        if (!std::strstr(x.what(), "lost the connection")) std::fprintf(stderr, "rank %d: %s\n", r, x.what());
      }
      ::_exit(code);
    }
    children.push_back(pid);
  }
  std::vector<int> codes;
  for (pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
  }
  return codes;
}

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

TEST_CASE("gloo between processes sums like the reference") {
  for (int size = 1; size <= 4; ++size)
    CHECK(in_processes(size, [](Job&, Communicator& c, Stream& s) {
            sums_are_right<float>(c, s);
            sums_are_right<bf16>(c, s);
            sums_are_right<double>(c, s);
          }) == std::vector<int>(size, 0));
}

TEST_CASE("groups of a job: any ranks, the same name twice, each its own order") {
  CHECK(in_processes(4, [](Job& job, Communicator&, Stream& s) {
          const int me = job.info().rank;
          for (int round = 0; round < 2; ++round) {
            auto pair =
                job.new_group("pair", Axis::tensor, me < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3});
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

TEST_CASE("a killed peer is an error within two seconds, not a hang") {
  const auto begin = std::chrono::steady_clock::now();
  const auto codes = in_processes(3, [](Job& job, Communicator& c, Stream& s) {
    std::vector<float> v(100000);
    for (int i = 0; i < 1000; ++i) {
      if (i == 20 && job.info().rank == 1) ::raise(SIGKILL);
      c.all_reduce(s, tensor(v));
      s.synchronize();
    }
  });
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < 5);
  CHECK(codes == std::vector<int>{9, 1009, 9});
}
