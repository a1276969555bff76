// Threads of a block as fibres. Only in builds with LTRAIN_CUDA_EMULATED.
#include <ucontext.h>

#include <array>
#include <csetjmp>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/kernel_cuda.h"

namespace ltrain::cuda {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kLanes = 32;

/// Into shared memory, later.
struct Copy {
  void* to;
  const void* from;  ///< null: zeros
  size_t bytes;
};

/// Made once a thread of the host and used for all its blocks. ucontext starts it; setjmp switches, without
/// the system calls of swapcontext.
struct Fibre {
  ucontext_t context;
  jmp_buf here;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  bool started = false, done = false;
  std::array<uint64_t, 4> words[2] = {};    ///< given to the last exchange and to the one before it
  std::deque<std::vector<Copy>> copies{1};  ///< not yet waited for; the last group is open
};

/// Where threads that belong together wait for each other, again and again.
struct Meeting {
  size_t members = 0;
  size_t arrived = 0;  ///< of the current round
  size_t ended = 0;    ///< that will not come again
  int64_t round = 0;
};

struct Block {
  size_t threads = 0;
  size_t running = 0;
  jmp_buf scheduler;
  const std::function<void()>* body = nullptr;
  Meeting barrier;
  std::array<Meeting, 1024 / kLanes> warps;
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
    if (!block->error && (self().copies.size() > 1 || !self().copies.back().empty()))
      block->error = std::make_exception_ptr(Error(ExitCode::internal, "a kernel ended before its copies"));
    self().done = true;
    ++block->barrier.ended;
    ++block->warps[block->running / kLanes].ended;
    yield();
  }
}

/// Until all members have come to the round's meeting.
void meet(Meeting& m, const char* where) {
  const int64_t mine = m.round;
  if (++m.arrived == m.members) {
    m.arrived = 0;
    ++m.round;
    return;
  }
  while (m.round == mine) {
    LT_CHECK(m.ended == 0, "a thread ended before a {} that others wait at", where);
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

void emulated_barrier() { meet(block->barrier, "barrier"); }

int64_t emulated_give(std::initializer_list<uint64_t> words) {
  const size_t at = block->running, warp = at / kLanes;
  LT_CHECK((warp + 1) * kLanes <= block->threads, "a shuffle in a block of {} threads", block->threads);
  Meeting& m = block->warps[warp];
  const int64_t round = m.round;
  // Two sides: the fast lanes may give their next words before the others took these.
  std::copy(words.begin(), words.end(), self().words[round % 2].begin());
  meet(m, "shuffle");
  return round;
}

uint64_t emulated_word(int64_t round, int lane, int which) {
  const size_t first = block->running / kLanes * kLanes;
  return fibres[first + static_cast<size_t>(lane)].words[round % 2][static_cast<size_t>(which)];
}

uint64_t emulated_exchange(uint64_t word, int mask) {
  const int lane = static_cast<int>(block->running % kLanes);
  return emulated_word(emulated_give({word}), lane ^ mask, 0);
}

std::atomic<bool> emulated_lanes_swapped{false};

void emulated_copy(void* to, const void* from, int bytes) {
  const size_t n = static_cast<size_t>(bytes);
  LT_CHECK(reinterpret_cast<uintptr_t>(to) % n == 0 && reinterpret_cast<uintptr_t>(from) % n == 0,
           "an asynchronous copy of {} bytes that is not aligned", bytes);
  std::memset(to, 0xff, n);  // NaN in every type: whoever still reads the tile before, or does not wait
  self().copies.back().push_back({to, from, n});
}

void emulated_commit() { self().copies.emplace_back(); }

void emulated_wait(size_t groups_left) {
  auto& groups = self().copies;
  while (groups.size() > groups_left + 1) {
    for (const Copy& c : groups.front())
      c.from ? std::memcpy(c.to, c.from, c.bytes) : std::memset(c.to, 0, c.bytes);
    groups.pop_front();
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
        for (size_t i = 0; i < b.threads; ++i) fibres[i].done = false;
        b.barrier = {b.threads, 0, 0, 0};
        b.warps.fill({kLanes, 0, 0, 0});
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
