#include "kernels/tensor/micro_batch_overlap.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <exception>
#include <string>

#include "base/error.h"
#include "kernels/tensor/timeline.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace ltrain {
namespace {

/// Size of a thread's stack: kernels, oneDNN and OpenMP run on it. Untouched pages take no memory.
constexpr size_t kStackBytes = 8 << 20;

/// A stack with an inaccessible guard page below it.
class Stack {
 public:
  Stack() : guard_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    memory_ = mmap(nullptr, guard_ + kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory_ == MAP_FAILED || mprotect(memory_, guard_, PROT_NONE) != 0)
      fail(ExitCode::does_not_fit, "no memory for a stack of {} MiB", kStackBytes >> 20);
  }
  ~Stack() { munmap(memory_, guard_ + kStackBytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  void* begin() const { return static_cast<char*>(memory_) + guard_; }

 private:
  size_t guard_;
  void* memory_;
};

/// Thrown in a piece after the other one has failed; caught at the base of the piece.
struct OtherFailed {};

thread_local std::unique_ptr<Stack> stack;  // one stack of the thread for all runs

}  // namespace

struct MicroBatchOverlap::Sides {
  struct Side {
    ucontext_t context{};
    std::string layer;
    bool model_work = true;
    bool done = false;
    int64_t counted = 0;
    const void* bottom = nullptr;  // bottom of its stack, for sanitizers
    size_t bytes = 0;
    void* fake = nullptr;
    void* fiber = nullptr;
  };
  Side side[2];
  int running = 0;
  bool started = false;
  const std::function<void()>* second = nullptr;
  const std::function<void(bool)>* tell = nullptr;
  std::exception_ptr error;

  /// Gives the thread to the other side, which resumes where it passed.
  void change(bool ends = false) {
    Side &from = side[running], &to = side[1 - running];
    running = 1 - running;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake, to.bottom, to.bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to.fiber, 0);
#endif
    swapcontext(&from.context, &to.context);
    arrived(from);
  }
  /// `here` has the thread now and has left the other side's stack.
  void arrived([[maybe_unused]] Side& here) {
#if defined(__SANITIZE_ADDRESS__)
    Side& other = &here == &side[0] ? side[1] : side[0];
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(here.fake, &bottom, &bytes);
    if (!other.bottom) other.bottom = bottom, other.bytes = bytes;
#endif
  }
};

MicroBatchOverlap::MicroBatchOverlap(Stream& compute, int adds_last)
    : compute_(compute), adds_last_(adds_last), sides_(std::make_unique<Sides>()) {}
MicroBatchOverlap::~MicroBatchOverlap() = default;

int MicroBatchOverlap::side(const Stream& compute) {
  return compute.overlap ? compute.overlap->sides_->running : 0;
}

// makecontext passes ints only: `high` and `low` are the halves of the run's address.
void MicroBatchOverlap::run_second(unsigned high, unsigned low) {
  const auto address = static_cast<uintptr_t>(static_cast<uint64_t>(high) << 32 | low);
  Sides& s = *reinterpret_cast<MicroBatchOverlap*>(address)->sides_;
  s.arrived(s.side[1]);
  try {
    (*s.second)();
  } catch (const OtherFailed&) {
  } catch (...) {
    s.error = std::current_exception();
  }
  s.side[1].done = true;
  s.change(/*ends=*/true);
}

void MicroBatchOverlap::run(Stream& compute, const std::function<void()>& first,
                            const std::function<void()>& second, int adds_last,
                            const std::function<void(bool)>& model_work) {
  LT_CHECK(!compute.overlap, "expected no nested MicroBatchOverlap::run on one stream, got a second one");
  if (!stack) stack = std::make_unique<Stack>();
  MicroBatchOverlap both(compute, adds_last);
  Sides& s = *both.sides_;
  s.second = &second;
  if (model_work) s.tell = &model_work;
  Sides::Side& own = s.side[1];
  getcontext(&own.context);
  own.context.uc_stack.ss_sp = stack->begin();
  own.context.uc_stack.ss_size = kStackBytes;
  own.context.uc_link = nullptr;
  const uint64_t address = reinterpret_cast<uintptr_t>(&both);
  makecontext(&own.context, reinterpret_cast<void (*)()>(run_second), 2, static_cast<unsigned>(address >> 32),
              static_cast<unsigned>(address));
  own.bottom = stack->begin();
  own.bytes = kStackBytes;
#if defined(__SANITIZE_THREAD__)
  s.side[0].fiber = __tsan_get_current_fiber();
  own.fiber = __tsan_create_fiber(0);
#endif
  compute.overlap = &both;
  try {
    first();
  } catch (const OtherFailed&) {
  } catch (...) {
    s.error = std::current_exception();
  }
  s.side[0].done = true;
  if (s.error && !s.started) own.done = true;
  while (!own.done) both.pass();
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(own.fiber);
#endif
  compute.overlap = nullptr;
  if (s.error) std::rethrow_exception(s.error);
}

void MicroBatchOverlap::pass() {
  Sides& s = *sides_;
  Sides::Side &mine = s.side[s.running], &other = s.side[1 - s.running];
  if (other.done || kept_ > 0) return;
  if (s.tell) (*s.tell)(other.model_work);
  if (mine.layer != other.layer) name_layer(compute_, other.layer);
  s.started = true;
  s.change();
  if (s.tell) (*s.tell)(mine.model_work);
  // The other piece entered this piece's layer before it passed, unless it ended.
  if (other.done && mine.layer != other.layer) name_layer(compute_, mine.layer);
  if (s.error && !mine.done) throw OtherFailed();
}

void MicroBatchOverlap::finish_other() {
  LT_CHECK(kept_ == 0, "expected no kept turn while a piece waits for the other, got {}", kept_);
  while (!sides_->side[1 - sides_->running].done) pass();
}

void MicroBatchOverlap::after_other(Stream& compute) {
  MicroBatchOverlap* run = compute.overlap;
  if (run && run->sides_->running == run->adds_last_) run->finish_other();
}

void MicroBatchOverlap::count() { ++sides_->side[sides_->running].counted; }

void MicroBatchOverlap::wait_for_count(int64_t n) {
  LT_CHECK(kept_ == 0, "expected no kept turn while a piece waits for the other, got {}", kept_);
  const Sides::Side& other = sides_->side[1 - sides_->running];
  while (!other.done && other.counted < n) pass();
}

void MicroBatchOverlap::enter(std::string_view layer) { sides_->side[sides_->running].layer = layer; }
void MicroBatchOverlap::set_model_work(bool on) {
  sides_->side[sides_->running].model_work = on;
  if (sides_->tell) (*sides_->tell)(on);
}

}  // namespace ltrain
