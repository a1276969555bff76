// A save that is killed before each of its system calls that change files: what is there afterwards is whole.
#include <catch2/catch.hpp>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <vector>

#include "tests/runtime/checkpoint/support.h"
#include "tests/support/outcome.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

#ifdef __x86_64__

namespace {

/// Calls that create, write, sync, rename or remove a file, of at most five arguments.
constexpr unsigned kCalls[] = {
    SYS_open,    SYS_openat,    SYS_creat,           SYS_write,     SYS_writev,    SYS_pwrite64,  SYS_pwritev,
    SYS_fsync,   SYS_fdatasync, SYS_sync_file_range, SYS_syncfs,    SYS_ftruncate, SYS_fallocate, SYS_link,
    SYS_linkat,  SYS_rename,    SYS_renameat,        SYS_renameat2, SYS_unlink,    SYS_unlinkat,  SYS_mkdir,
    SYS_mkdirat, SYS_symlink,   SYS_symlinkat,       SYS_rmdir,     SYS_close};
/// Sixth argument of a call that the handler makes: the filter lets it pass.
constexpr unsigned kPass = 0x5eccde41;

/// Shared with the child: calls so far, and the one before which it is killed.
struct Counter {
  std::atomic<int64_t> calls, kill_at;
};
Counter* counter = nullptr;

void count_call(int, siginfo_t* info, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (counter->calls.fetch_add(1) + 1 == counter->kill_at) ::kill(::getpid(), SIGKILL);
  const int64_t result = ::syscall(info->si_syscall, registers[REG_RDI], registers[REG_RSI],
                                   registers[REG_RDX], registers[REG_R10], registers[REG_R8], kPass);
  registers[REG_RAX] = result < 0 ? -errno : result;
}

/// Sends each call of kCalls of this process and its threads to come to count_call. False: not allowed here.
bool trap_calls() {
  struct sigaction action = {};
  action.sa_sigaction = count_call;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGSYS, &action, nullptr);
  const auto load = [](size_t at) { return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, unsigned(at)); };
  std::vector<sock_filter> filter{
      load(offsetof(seccomp_data, args[5])), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPass, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), load(offsetof(seccomp_data, nr))};
  for (const unsigned call : kCalls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

constexpr int kNotAllowed = 77;

/// Saves steps 1 to 3 with two ranks, keeping two, in a process that is killed before call number `kill_at`.
/// Returns its status as of waitpid.
int saves_killed_at(const std::string& folder, int64_t kill_at) {
  counter->calls = 0, counter->kill_at = kill_at;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (!trap_calls()) ::_exit(kNotAllowed);
    save_steps(folder, 2, Slicing::flat, {1, 2, 3}, 2);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("killed before any system call of a save, the loader finds the checkpoint before or after, whole",
          "[checkpoint][faults]") {
  counter = static_cast<Counter*>(
      ::mmap(nullptr, sizeof(Counter), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(counter != MAP_FAILED);
  int64_t all = 0;
  {
    const TemporaryFolder folder;
    const int status = saves_killed_at(folder.path(), 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed) {
      skip_test("no seccomp filters here");
      return;
    }
    REQUIRE(status == 0);
    all = counter->calls;
    std::vector<std::string> notes;
    CHECK(load_and_check(folder.path(), notes) == 3);
  }
  CHECK(all > 100);
  // Steps that a kill left as the newest, with the number of kills.
  std::map<int64_t, int> newest;
  for (int64_t call = 1; call <= all; ++call) {
    INFO("killed before call " << call << " of " << all);
    const TemporaryFolder folder;
    const int status = saves_killed_at(folder.path(), call);
    // The two ranks make their calls in another order each time: there may be one fewer to wait for.
    if (!WIFSIGNALED(status)) continue;
    CHECK(WTERMSIG(status) == SIGKILL);
    int64_t step = -1;  // a new start
    for (const Candidate& c : list_checkpoints(folder.path())) {
      CHECK(c.error.empty());  // nothing half-made has a name
      step = std::max(step, c.manifest.info.step);
    }
    std::vector<std::string> notes;
    CHECK(load_and_check(folder.path(), notes) == step);
    ++newest[step];
    // The next run sweeps what is left and goes on.
    const int64_t next = std::max<int64_t>(step, 0) + 1;
    save_steps(folder.path(), 3, Slicing::rows, {next});
    CHECK(load_and_check(folder.path(), notes) == next);
    for (const std::string& name : list_folder(folder.path())) CHECK(name.find(".tmp-") == std::string::npos);
  }
  ::munmap(counter, sizeof(Counter));
  for (const int64_t step : {-1, 1, 2, 3}) CHECK(newest[step] > 3);
}

#endif
