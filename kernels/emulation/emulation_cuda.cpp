// Threads of a block as fibres. Only in builds with LTRAIN_CUDA_EMULATED.
#include <ucontext.h>

#include <array>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/hopper_cuda.h"
#include "kernels/cuda/persistent_cuda.h"

namespace ltrain::cuda {
namespace {

constexpr size_t kStackBytes = 64 << 10;
// Extra offset of each fibre's stack: with all at multiples of a power of two, caches would hold the stacks
// of a few fibres only.
constexpr size_t kStagger = 1088, kStaggers = 32;
constexpr size_t kLanes = 32;

/// An asynchronous copy into shared memory.
struct Copy {
  void* to;
  const void* from;  ///< null: zeros
  size_t bytes;
};

/// Created once per host thread and used for all its blocks. ucontext starts a fibre; setjmp switches,
/// without the system calls of swapcontext.
struct Fibre {
  ucontext_t context;
  jmp_buf here;
  std::unique_ptr<char[]> stack{new char[kStackBytes + kStagger * kStaggers]};
  bool started = false, done = false;
  std::array<uint64_t, 4> words[2] = {};    ///< words of the last exchange and of the one before
  std::deque<std::vector<Copy>> copies{1};  ///< in progress; the last group is open
};

/// A barrier for a set of threads, used many times.
struct Meeting {
  size_t members = 0;
  size_t arrived = 0;  ///< arrivals of the current round
  size_t ended = 0;    ///< members that have ended
  int64_t round = 0;
};

struct Block {
  size_t threads = 0;
  size_t running = 0;
  const std::unique_ptr<Fibre>* fibres = nullptr;
  jmp_buf scheduler;
  const std::function<void()>* body = nullptr;
  Meeting barrier;
  std::array<Meeting, 1024 / kLanes> warps;
  std::array<Meeting, 16> named;
  std::exception_ptr error;  ///< exception of a fibre, which cannot leave its stack
  int pieces = 0;            ///< pieces of work that the running block took after its first
  bool told = false;         ///< the block got the answer that no work is left
  bool moved = false;        ///< some fibre made progress since the scheduler began its round
};

thread_local std::vector<std::unique_ptr<Fibre>> fibres;
thread_local Block* block = nullptr;
thread_local const char* waits_for = "a barrier";  ///< last wait of a fibre

Fibre& self() { return *block->fibres[block->running]; }

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
    self().done = block->moved = true;
    ++block->barrier.ended;
    ++block->warps[block->running / kLanes].ended;
    yield();
  }
}

/// Waits until all members have arrived. The last one calls `together` before they go on.
template <class F>
void meet(Meeting& m, const char* where, F&& together) {
  const int64_t mine = m.round;
  block->moved = true;
  if (++m.arrived == m.members) {
    together();
    m.arrived = 0;
    ++m.round;
    return;
  }
  while (m.round == mine) {
    LT_CHECK(m.ended == 0, "expected all threads at a {}, but a thread ended before a {} that others wait at",
             where, where);
    yield();
  }
}

void meet(Meeting& m, const char* where) {
  meet(m, where, [] {});
}

/// Not inlined: GCC treats getcontext() and setjmp() as functions that return twice.
[[gnu::noinline]] void prepare(Fibre& f, size_t number) {
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.get() + number % kStaggers * kStagger;
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

constinit thread_local Emulated emulated_state;

void emulated_barrier() { meet(block->barrier, "barrier"); }

void emulated_named_barrier(int id, int threads, bool wait) {
  LT_CHECK(id > 0 && id < 16 && threads % kLanes == 0,
           "expected a named barrier of id 1 to 15 and full warps, got barrier {} of {} threads", id,
           threads);
  Meeting& m = block->named[static_cast<size_t>(id)];
  LT_CHECK(m.arrived == 0 || m.members == static_cast<size_t>(threads),
           "expected {} threads at barrier {}, got {}", m.members, id, threads);
  m.members = static_cast<size_t>(threads);
  if (wait) return meet(m, "named barrier");
  block->moved = true;
  if (++m.arrived == m.members) m.arrived = 0, ++m.round;
}

void emulated_wait_until(const std::function<bool()>& ready, const char* what) {
  while (!ready()) {
    waits_for = what;
    yield();
  }
  block->moved = true;
}

void emulated_moved() { block->moved = true; }

namespace {

Meeting& warp() {
  const size_t at = block->running / kLanes;
  LT_CHECK((at + 1) * kLanes <= block->threads,
           "expected a shuffle in a full warp, got a block of {} threads", block->threads);
  return block->warps[at];
}

}  // namespace

int64_t emulated_give(std::initializer_list<uint64_t> words) {
  Meeting& m = warp();
  const int64_t round = m.round;
  // Double buffer: fast lanes may pass their next words before the others have read these.
  std::copy(words.begin(), words.end(), self().words[round % 2].begin());
  meet(m, "shuffle");
  return round;
}

uint64_t emulated_word(int64_t round, int lane, int which) {
  const size_t first = block->running / kLanes * kLanes;
  return block->fibres[first + static_cast<size_t>(lane)]->words[round % 2][static_cast<size_t>(which)];
}

void emulated_together(std::initializer_list<uint64_t> words, void (*together)(const WarpWords&)) {
  Meeting& m = warp();
  const size_t side = static_cast<size_t>(m.round % 2);
  std::copy(words.begin(), words.end(), self().words[side].begin());
  meet(m, "shuffle", [&] {
    WarpWords all;
    const auto* const lanes = block->fibres + block->running / kLanes * kLanes;
    for (size_t lane = 0; lane < kLanes; ++lane) all[lane] = lanes[lane]->words[side];
    together(all);
  });
}

uint64_t emulated_exchange(uint64_t word, int mask) {
  const int lane = static_cast<int>(block->running % kLanes);
  return emulated_word(emulated_give({word}), lane ^ mask, 0);
}

std::atomic<bool> emulated_lanes_swapped{false};
std::atomic<void (*)(const void*, int64_t, bool)> emulated_on_copy{nullptr};
EmulatedTraffic emulated_traffic;

void emulated_copy(void* to, const void* from, int bytes) {
  const size_t n = static_cast<size_t>(bytes);
  LT_CHECK(reinterpret_cast<uintptr_t>(to) % n == 0 && reinterpret_cast<uintptr_t>(from) % n == 0,
           "expected an asynchronous copy of {} bytes between aligned addresses, got {} and {}", bytes, to,
           from);
  if (from) {
    emulated_copied(from, bytes, false);
    emulated().accesses.count(emulated().accesses.loaded, bytes);
  }
  // NaN in every type, for threads that still read the previous tile or do not wait
  std::memset(to, 0xff, n);
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

/// Blocks run one after another. Each leaves pieces to the others, as on a card, where they run at once.
int next_piece(unsigned* counter, int pieces) {
  constexpr int kMost = 2;
  const Emulated& now = emulated();
  const unsigned blocks = now.grid_dim.x;
  const bool last = now.block.x + 1 == blocks;
  LT_CHECK(blocks <= static_cast<unsigned>(pieces),
           "expected at most as many blocks as pieces of work, got {} blocks for {} pieces", blocks, pieces);
  LT_CHECK(!block->told,
           "expected no request after the last answer, but a block asks for work after it was told that "
           "there is no more");
  if (static_cast<int>(blocks + *counter) < pieces && (last || block->pieces < kMost)) {
    ++block->pieces;
    return static_cast<int>(blocks + (*counter)++);
  }
  block->told = true;
  if (last) *counter = 0;
  return pieces;
}

namespace {

void count_accesses() {
  const EmulatedAccesses of = std::exchange(emulated().accesses, {});
  EmulatedTraffic& all = emulated_traffic;
  all.loaded += of.loaded, all.stored += of.stored, all.wide += of.wide, all.narrow += of.narrow;
}

[[noreturn]] void give_up(const std::exception_ptr& error) {
  count_accesses();
  fibres.clear();  // fibres in the middle of a body are unusable
  block = nullptr;
  emulated_hopper_drop();
  std::rethrow_exception(error);
}

}  // namespace

void check_launch(dim3 grid, int threads, int64_t shared) {
  constexpr unsigned kMostX = 0x7fffffff, kMostYZ = 65535;
  LT_CHECK(grid.x > 0 && grid.y > 0 && grid.z > 0, "CUDA refuses a grid without blocks: {} x {} x {}", grid.x,
           grid.y, grid.z);
  LT_CHECK(grid.x <= kMostX && grid.y <= kMostYZ && grid.z <= kMostYZ,
           "CUDA refuses a grid of {} x {} x {} blocks: expected at most {} x {} x {}", grid.x, grid.y,
           grid.z, kMostX, kMostYZ, kMostYZ);
  LT_CHECK(threads > 0 && threads <= 1024, "CUDA refuses blocks of {} threads: expected 1 to 1024", threads);
  LT_CHECK(shared >= 0 && shared <= kMostShared,
           "CUDA refuses blocks with {} bytes of shared memory: expected at most {}", shared, kMostShared);
}

void refuse_access(const void* at, size_t bytes) {
  fail(ExitCode::internal,
       "a GPU faults at an access of {} bytes to address {}, which is not a multiple of them", bytes, at);
}

void emulate(dim3 grid, int threads, int64_t shared, const std::function<void()>& body) {
  LT_CHECK(!block, "expected a kernel launch from the host, got one from a kernel");
  check_launch(grid, threads, shared);
  // Alignment for Hopper's swizzles, which use bits of the address.
  const size_t bytes = static_cast<size_t>(shared + 1024) / 1024 * 1024;
  const std::unique_ptr<double, decltype(&std::free)> memory{
      static_cast<double*>(std::aligned_alloc(1024, bytes)), std::free};
  while (fibres.size() < static_cast<size_t>(threads))
    prepare(*fibres.emplace_back(std::make_unique<Fibre>()), fibres.size());
  Block b;
  b.threads = static_cast<size_t>(threads);
  b.fibres = fibres.data();
  b.body = &body;
  block = &b;
  Emulated& state = emulated();
  state.grid_dim = grid;
  state.block_dim = dim3(static_cast<unsigned>(threads));
  state.shared = memory.get();
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        state.block = dim3(x, y, z);
        // Fills shared memory with NaN, so that reads before a write show.
        std::fill(memory.get(), memory.get() + bytes / sizeof(double), std::nan(""));
        for (size_t i = 0; i < b.threads; ++i) fibres[i]->done = false;
        b.pieces = 0, b.told = false;
        b.barrier = {b.threads, 0, 0, 0};
        b.warps.fill({kLanes, 0, 0, 0});
        b.named.fill({});
        emulated_hopper_begin(threads, memory.get(), shared);
        for (bool some = true; some;) {
          some = b.moved = false;
          for (b.running = 0; b.running < b.threads; ++b.running) {
            if (self().done) continue;
            some = true;
            state.thread = dim3(static_cast<unsigned>(b.running));
            resume(self());
            if (b.error) give_up(b.error);
          }
          if (some && !b.moved)
            give_up(std::make_exception_ptr(Error(
                ExitCode::internal, fmt::format("all threads of a block wait, one for {}", waits_for))));
        }
        try {
          LT_CHECK(b.told || b.pieces == 0,
                   "expected requests until no work is left, but a block ended before it was told that there "
                   "is no more work");
          for (const Meeting& m : b.named)
            LT_CHECK(m.arrived == 0,
                     "expected all threads at a named barrier, but a kernel ended in a named barrier with {} "
                     "of {}",
                     m.arrived, m.members);
          emulated_hopper_end();
        } catch (...) {
          give_up(std::current_exception());
        }
      }
  block = nullptr;
  count_accesses();
}

}  // namespace ltrain::cuda
