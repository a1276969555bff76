// Only in builds with LTRAIN_CUDA_EMULATED.
#include "kernels/emulation/emulated_memory_cuda.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "base/error.h"

namespace ltrain::cuda {
namespace {

using Region = ClosedMemory;

std::mutex mutex;
std::vector<Region> regions;
int open_count = 0;

void protect(const Region& r, int how) {
  LT_CHECK(::mprotect(r.begin, r.bytes, how) == 0,
           "expected mprotect of emulated device memory to succeed, got {}", std::strerror(errno));
}

/// Signal handler. All its calls are async-signal-safe except backtrace(), which was called once before.
void on_fault(int, siginfo_t* info, void*) {
  const char* at = static_cast<const char*>(info->si_addr);
  for (const Region& r : regions)
    if (at >= r.begin && at < r.begin + r.bytes) {
      const char text[] =
          "ltrain: HOST CODE TOUCHED DEVICE MEMORY: only kernels, Stream::copy and collectives may; from:\n";
      [[maybe_unused]] const ssize_t ignored = ::write(2, text, sizeof text - 1);
      void* frames[32];
      ::backtrace_symbols_fd(frames, ::backtrace(frames, 32), 2);
    }
  ::signal(SIGSEGV, SIG_DFL);  // the access repeats, and ends the process
}

/// Installs the handler each time: a test framework sets its own.
void watch() {
  void* frame[1];
  ::backtrace(frame, 1);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace

std::shared_ptr<void> closed_memory(int64_t bytes) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  // 0 bytes too
  const size_t size = std::max<size_t>(1, (static_cast<size_t>(bytes) + page - 1) / page) * page;
  std::lock_guard lock(mutex);
  void* p = ::mmap(nullptr, size, open_count ? PROT_READ | PROT_WRITE : PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LT_CHECK(p != MAP_FAILED, "expected {} bytes of emulated device memory, got {}", bytes,
           std::strerror(errno));
  watch();
  regions.push_back({static_cast<char*>(p), size});
  return {p, [](void* q) {
            std::lock_guard lock(mutex);
            for (size_t i = 0; i < regions.size(); ++i)
              if (regions[i].begin == q) {
                ::munmap(q, regions[i].bytes);
                regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(i));
                return;
              }
          }};
}

std::vector<ClosedMemory> closed_memories() {
  std::lock_guard lock(mutex);
  return regions;
}

OpenMemory::OpenMemory() {
  std::lock_guard lock(mutex);
  if (open_count++ == 0)
    for (const Region& r : regions) protect(r, PROT_READ | PROT_WRITE);
}

OpenMemory::~OpenMemory() {
  std::lock_guard lock(mutex);
  if (--open_count == 0)
    for (const Region& r : regions) protect(r, PROT_NONE);
}

}  // namespace ltrain::cuda
