// Only in builds with LTRAIN_CUDA_EMULATED.
#include <ucontext.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/kernel_cuda.h"
#include "kernels/ops/matmul.h"

namespace ltrain::cuda {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr int kLanes = 32;

struct Fibre {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  bool done = false;
  int64_t barriers = 0, exchanges = 0;  ///< passed or waited at
  uint64_t word[2] = {};                ///< given to the last exchange and to the one before it
};

struct Block {
  std::vector<Fibre> fibres;
  ucontext_t scheduler;
  size_t running = 0;
  const std::function<void()>* body = nullptr;
  std::exception_ptr error;  ///< of a fibre: none can leave its stack
};

thread_local Emulated state;
thread_local Block* block = nullptr;

Fibre& self() { return block->fibres[block->running]; }

void yield() {
  Fibre& f = self();
  swapcontext(&f.context, &block->scheduler);
}

void run_body() {
  try {
    (*block->body)();
  } catch (...) {
    if (!block->error) block->error = std::current_exception();
  }
  self().done = true;
  yield();
}

/// Apart: GCC takes getcontext() for a function that returns twice.
[[gnu::noinline]] void start(Fibre& f) {
  f.done = false;
  f.barriers = f.exchanges = 0;
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.data();
  f.context.uc_stack.ss_size = f.stack.size();
  f.context.uc_link = nullptr;
  makecontext(&f.context, run_body, 0);
}

}  // namespace

Emulated& emulated() { return state; }

void emulated_barrier() {
  const int64_t mine = ++self().barriers;
  while (true) {
    bool all = true;
    for (const Fibre& f : block->fibres) {
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
  LT_CHECK(warp + kLanes <= block->fibres.size(), "a shuffle in a block of {} threads", block->fibres.size());
  while (true) {
    bool all = true;
    for (size_t i = warp; i < warp + kLanes; ++i) {
      const Fibre& f = block->fibres[i];
      LT_CHECK(!f.done || f.exchanges >= mine, "a lane ended before a shuffle that others wait at");
      all = all && f.exchanges >= mine;
    }
    if (all) return block->fibres[warp + ((at - warp) ^ static_cast<size_t>(mask))].word[mine % 2];
    yield();
  }
}

void emulate(dim3 grid, int threads, int64_t shared, const std::function<void()>& body) {
  LT_CHECK(!block, "a kernel launched from a kernel");
  LT_CHECK(threads > 0 && threads <= 1024 && grid.y <= 65535 && grid.z <= 65535, "a launch of {} threads",
           threads);
  LT_CHECK(shared <= 227 << 10, "{} bytes of shared memory", shared);
  std::vector<double> memory(static_cast<size_t>(shared + 15) / 8);
  Block b;
  b.fibres.resize(static_cast<size_t>(threads));
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
        for (Fibre& f : b.fibres) start(f);
        for (bool some = true; some;) {
          some = false;
          for (b.running = 0; b.running < b.fibres.size(); ++b.running) {
            if (self().done) continue;
            some = true;
            state.thread = dim3(static_cast<unsigned>(b.running));
            swapcontext(&b.scheduler, &self().context);
            if (b.error) {
              block = nullptr;
              std::rethrow_exception(b.error);
            }
          }
        }
      }
  block = nullptr;
}

namespace {

/// Device memory is host memory, and work is done when launch() returns.
class EmulatedStream final : public Stream {
 public:
  explicit EmulatedStream(std::string name) : Stream(DeviceKind::cuda, std::move(name)) {}
  void launch(std::function<void()> work) override { work(); }
  Event record() override { return Event(); }
  void wait(const Event&) override {}
  void synchronize() override {}
  void* scratch() { return scratch_.data(); }

 private:
  std::vector<double> scratch_ = std::vector<double>(kScratchBytes / 8);
};

}  // namespace

std::string no_device_reason() { return ""; }
std::shared_ptr<void> device_memory(int64_t bytes) {
  return {std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256 + 256)), std::free};
}

std::unique_ptr<Stream> make_cuda_stream(std::string name) {
  return std::make_unique<EmulatedStream>(std::move(name));
}
void* scratch(Stream& s, int64_t bytes) {
  LT_CHECK(bytes <= kScratchBytes, "{} bytes of a stream's scratch, which has {}", bytes, kScratchBytes);
  return static_cast<EmulatedStream&>(s).scratch();
}
void fill_bytes(Stream& s, void* to, int64_t bytes) { std::memset(to, 0, static_cast<size_t>(bytes)); }

}  // namespace ltrain::cuda

namespace ltrain {

/// Host memory is the device's, so the CPU's product is as good as any.
void matmul_cuda(Stream& s, Tensor out, Tensor a, Tensor b, const MatmulArgs& args) {
  const auto cpu = make_inline_stream("emulated matmul");
  matmul(*cpu, out, a, b, args);
}

}  // namespace ltrain
