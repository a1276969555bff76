// Signals to launchers and ranks, alone and beside a thread that blocks no signals, as a GPU driver starts
// one: no signal is lost, whichever thread it arrives at.
#include <catch2/catch.hpp>

#include "parallel/comm/socket.h"
#include "tests/faults/run_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Variables of a program that has a thread without a signal mask, and of one that has none.
Pairs with_or_without_thread() {
  return GENERATE(false, true) ? Pairs{{"LD_PRELOAD", LTRAIN_UNMASKED_THREAD}} : Pairs{};
}

Pairs joined(Pairs a, const Pairs& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Pairs torchrun(int rank, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", "2"},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
}

/// Blocks all signals of this thread while it lives, and so of the programs that it starts.
class AllBlocked {
 public:
  AllBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

void check_stopped(Program& p) {
  const RunResult r = p.wait();
  INFO(r.output << r.error);
  CHECK(r.code == 75);
  CHECK(marked_processes(p.mark()).empty());
}

}  // namespace

TEST_CASE("a job ends, whichever thread hears of its ranks' end") {
  const Pairs variables = with_or_without_thread();
  for (int i = 0; i < 8; ++i) {
    Program p(selftest(2, 3), variables);
    REQUIRE(wait_until(20 * time_scale(), [&] { return ended(p.pid()); }));
    CHECK(p.wait().code == 0);
  }
}

TEST_CASE("signals: once saves and stops, SIGINT twice ends at once (F6, F12)") {
  const Pairs variables = with_or_without_thread();
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP})
    for (int round = 0; round < 3; ++round) {
      Program p(selftest(3), variables);
      REQUIRE(started(p, 3));
      ::kill(p.pid(), signal);
      if (signal == SIGTERM) ::kill(p.pid(), signal);  // Slurm sends it twice
      check_stopped(p);
    }
  // A rank that hangs keeps them all from stopping after the first.
  Program p(selftest(3), joined(variables, {{"LTRAIN_FAULT", "selftest.step:1:1:hang"}}));
  REQUIRE(started(p, 3));
  ::kill(p.pid(), SIGINT);
  std::this_thread::sleep_for(std::chrono::duration<double>(0.5 * time_scale()));
  const auto before = std::chrono::steady_clock::now();
  ::kill(p.pid(), SIGINT);
  const RunResult r = p.wait();
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count() <
        1.5 * time_scale());
  CHECK(r.code == 71);
  CHECK(marked_processes(p.mark()).empty());
}

TEST_CASE("a signal to one rank stops them all together") {
  const Pairs variables = with_or_without_thread();
  for (int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
    Program p(selftest(3), variables);
    REQUIRE(started(p, 3));
    ::kill(p.ranks()[1], signal);
    check_stopped(p);
  }
}

// Without the other thread: before main a library's thread takes the signal with its default action, which no
// program can prevent. Drivers are opened after main has its handlers.
TEST_CASE("a signal to a rank that does not handle it yet stops them all together") {
  for (int signal : {SIGTERM, SIGUSR1, SIGHUP})
    for (int round = 0; round < 4; ++round) {
      Program p(selftest(3));
      std::vector<int> ranks;
      while ((ranks = p.ranks()).empty()) REQUIRE(!ended(p.pid()));
      ::kill(ranks[0], signal);
      check_stopped(p);
    }
}

TEST_CASE("ranks that torchrun, srun or mpirun started stop at a signal to one of them") {
  const Pairs variables = with_or_without_thread();
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    const int port = free_port();
    Program zero(selftest(2), joined(variables, torchrun(0, port)));
    Program one(selftest(2), joined(variables, torchrun(1, port)));
    for (Program* p : {&zero, &one})
      REQUIRE(wait_until(10 * time_scale(), [&] { return handles(p->pid(), SIGTERM); }));
    ::kill(one.pid(), signal);
    check_stopped(zero);
    check_stopped(one);
  }
}

TEST_CASE("a job whose parent blocks all signals still heeds them") {
  const Pairs variables = with_or_without_thread();
  const AllBlocked blocked;
  Program p(selftest(2), variables);
  REQUIRE(started(p, 2));
  ::kill(p.pid(), SIGTERM);
  check_stopped(p);
}

TEST_CASE("one rank without a launcher: signals save and stop") {
  Program p(selftest(1), with_or_without_thread());
  REQUIRE(wait_until(5 * time_scale(), [&] { return handles(p.pid(), SIGTERM); }));
  ::kill(p.pid(), SIGTERM);
  check_stopped(p);
}

TEST_CASE("Ctrl-C ends commands that start no ranks") {
  Program p({"bench", "--output", "/dev/null"}, with_or_without_thread());
  std::this_thread::sleep_for(std::chrono::duration<double>(0.5 * time_scale()));
  REQUIRE(!ended(p.pid()));
  ::kill(p.pid(), SIGINT);
  REQUIRE(wait_until(2 * time_scale(), [&] { return ended(p.pid()); }));
  const int code = p.wait().code;  // with ranks of its own or without
  CHECK((code == 128 + SIGINT || code == 1000 + SIGINT));
  CHECK(marked_processes(p.mark()).empty());
}
