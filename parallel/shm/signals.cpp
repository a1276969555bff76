#include "parallel/shm/signals.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <ctime>

namespace ltrain::shm {
namespace {

constexpr double kSliceSeconds = 0.02;  // interval of checks that others are alive

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, double seconds) {
  timespec t{};
  t.tv_sec = static_cast<time_t>(seconds);
  t.tv_nsec = static_cast<long>((seconds - static_cast<double>(t.tv_sec)) * 1e9);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &t, nullptr, 0);
}

uint32_t code_of(const Blocked& on) {
  return on.b < 0 || on.b == on.a ? static_cast<uint32_t>(on.a) + 1 : kAnyone;
}

}  // namespace

Signals::Signals(const Segment& segment, int rank, Fd own_life, std::vector<Fd> others_life,
                 double spin_seconds)
    : segment_(segment),
      rank_(rank),
      own_life_(std::move(own_life)),
      others_life_(std::move(others_life)),
      spin_ticks_(static_cast<uint64_t>(spin_seconds * 1e9)) {}

Signals::~Signals() {
  segment_.control(rank_).left.store(1, std::memory_order_seq_cst);
  for (int r = 0; r < segment_.layout().ranks; ++r) ring_if_waiting(r);
}

uint64_t Signals::ticks() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

void Signals::pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Signals::ring(int r) {
  std::atomic<uint32_t>& bell = segment_.control(r).doorbell;
  bell.fetch_add(1, std::memory_order_seq_cst);
  ::syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Signals::give_up(uint64_t sequence, int culprit) {
  publish(segment_.control(rank_).gave_up, sequence << 16 | static_cast<uint64_t>(culprit + 2));
}

Lost Signals::gave_up(uint64_t sequence) const {
  for (int r = 0; r < segment_.layout().ranks; ++r) {
    const uint64_t word = segment_.control(r).gave_up.load(std::memory_order_seq_cst);
    if (word != 0 && word >> 16 <= sequence)
      return {r, static_cast<int>(word & 0xffff) - 2, Lost::How::gave_up};
  }
  return {};
}

bool Signals::dead(int rank) {
  pollfd p{others_life_[static_cast<size_t>(rank)].get(), 0, 0};
  return ::poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0;
}

Lost Signals::save_policy(const Blocked& on, bool look_for_dead) {
  for (int r : {on.a, on.b}) {
    if (r < 0) continue;
    const RankControl& c = segment_.control(r);
    if (const uint64_t word = c.gave_up.load(std::memory_order_seq_cst); word != 0)
      return {r, static_cast<int>(word & 0xffff) - 2, Lost::How::gave_up};
    if (c.left.load(std::memory_order_seq_cst) != 0) return {r, -1, Lost::How::left};
    if (look_for_dead && dead(r)) return {r, -1, Lost::How::died};
  }
  return {};
}

Lost Signals::sleep(const std::function<Blocked()>& blocked, double timeout_seconds) {
  RankControl& me = segment_.control(rank_);
  const uint64_t begin = ticks();
  const double limit = timeout_seconds * 1e9;
  uint64_t looked = begin;
  Lost lost;
  while (true) {
    const Blocked on = blocked();
    if (on.nobody()) break;
    me.waits_for.store(code_of(on), std::memory_order_seq_cst);
    const uint32_t bell = me.doorbell.load(std::memory_order_seq_cst);
    if (blocked() != on) continue;
    const uint64_t now = ticks();
    const bool look = static_cast<double>(now - looked) >= kSliceSeconds * 1e9;
    if (look) looked = now;
    if (lost = save_policy(on, look); lost.rank >= 0) {
      // The rank may have done its part before it ended.
      if (blocked().nobody()) lost = {};
      break;
    }
    const double left = limit - static_cast<double>(now - begin);
    if (left <= 0) {
      lost = {on.a, -1, Lost::How::timed_out};
      break;
    }
    futex_wait(me.doorbell, bell, std::min(kSliceSeconds, left * 1e-9 + 1e-6));
  }
  me.waits_for.store(kNobody, std::memory_order_seq_cst);
  return lost;
}

}  // namespace ltrain::shm
