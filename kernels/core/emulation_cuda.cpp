// Threads of a block as fibres. Only in builds with LTRAIN_CUDA_EMULATED.
#include <ucontext.h>
#include <csetjmp>
#include <deque>
#include <exception>
#include <memory>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/kernel_cuda.h"

namespace ltrain::cuda {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr int kLanes = 32;

/// Made once a thread of the host and used for all its blocks. ucontext starts it; setjmp switches, without
/// the system calls of swapcontext.
struct Fibre {
  ucontext_t context;
  jmp_buf here;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  bool started = false, done = false;
  int64_t barriers = 0, exchanges = 0;  ///< passed or waited at
  uint64_t word[2] = {};                ///< given to the last exchange and to the one before it
};

struct Block {
  size_t threads = 0;
  size_t running = 0;
  jmp_buf scheduler;
  const std::function<void()>* body = nullptr;
  std::exception_ptr error;  ///< of a fibre: none can leave its stack
};

thread_local Emulated state;
thread_local std::deque<Fibre> fibres;  // addresses stay
thread_local Block* block = nullptr;

Fibre& self() { return fibres[block->running]; }

void yield() {
  if (_setjmp(self().here) == 0) _longjmp(block->scheduler, 1);
}

void run_bodies() {
  while (true) {
    try {
      (*block->body)();
    } catch (...) {
      if (!block->error) block->error = std::current_exception();
    }
    self().done = true;
    yield();
  }
}

/// Apart: GCC takes getcontext() and setjmp() for functions that return twice.
[[gnu::noinline]] void prepare(Fibre& f) {
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.get();
  f.context.uc_stack.ss_size = kStackBytes;
  f.context.uc_link = nullptr;
  makecontext(&f.context, run_bodies, 0);
}

[[gnu::noinline]] void resume(Fibre& f) {
  if (_setjmp(block->scheduler) != 0) return;
  if (f.started) _longjmp(f.here, 1);
  f.started = true;
  setcontext(&f.context);
}

}  // namespace

Emulated& emulated() { return state; }

void emulated_barrier() {
  const int64_t mine = ++self().barriers;
  while (true) {
    bool all = true;
    for (size_t i = 0; i < block->threads; ++i) {
      const Fibre& f = fibres[i];
      LT_CHECK(!f.done || f.barriers >= mine, "a thread ended before a barrier that others wait at");
      all = all && f.barriers >= mine;
    }
    if (all) return;
    yield();
  }
}

uint64_t emulated_exchange(uint64_t word, int mask) {
  const int64_t mine = ++self().exchanges;
  self().word[mine % 2] = word;
  const size_t at = block->running, warp = at / kLanes * kLanes;
  LT_CHECK(warp + kLanes <= block->threads, "a shuffle in a block of {} threads", block->threads);
  while (true) {
    bool all = true;
    for (size_t i = warp; i < warp + kLanes; ++i) {
      const Fibre& f = fibres[i];
      LT_CHECK(!f.done || f.exchanges >= mine, "a lane ended before a shuffle that others wait at");
      all = all && f.exchanges >= mine;
    }
    if (all) return fibres[warp + ((at - warp) ^ static_cast<size_t>(mask))].word[mine % 2];
    yield();
  }
}

void emulate(dim3 grid, int threads, int64_t shared, const std::function<void()>& body) {
  LT_CHECK(!block, "a kernel launched from a kernel");
  LT_CHECK(threads > 0 && threads <= 1024 && grid.y <= 65535 && grid.z <= 65535, "a launch of {} threads",
           threads);
  LT_CHECK(shared <= 227 << 10, "{} bytes of shared memory", shared);
  std::vector<double> memory(static_cast<size_t>(shared + 15) / 8);
  while (fibres.size() < static_cast<size_t>(threads)) prepare(fibres.emplace_back());
  Block b;
  b.threads = static_cast<size_t>(threads);
  b.body = &body;
  block = &b;
  state.grid_dim = grid;
  state.block_dim = dim3(static_cast<unsigned>(threads));
  state.shared = memory.data();
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        state.block = dim3(x, y, z);
        std::fill(memory.begin(), memory.end(), std::nan(""));  // nothing may be read before it is written
        for (size_t i = 0; i < b.threads; ++i)
          fibres[i].done = false, fibres[i].barriers = fibres[i].exchanges = 0;
        for (bool some = true; some;) {
          some = false;
          for (b.running = 0; b.running < b.threads; ++b.running) {
            if (self().done) continue;
            some = true;
            state.thread = dim3(static_cast<unsigned>(b.running));
            resume(self());
            if (!b.error) continue;
            fibres.clear();  // those in the middle of a body are of no more use
            block = nullptr;
            std::rethrow_exception(b.error);
          }
        }
      }
  block = nullptr;
}

}  // namespace ltrain::cuda
