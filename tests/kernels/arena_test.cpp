#include "kernels/meta/meta_memory.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/meta/meta.h"
#include "kernels/tensor/rng.h"

using namespace ltrain;

namespace {

/// Best fit, lowest among equals, else on top: over a plain list of bytes in use.
class NaiveModel {
 public:
  int64_t allocate(int64_t bytes) {
    std::map<int64_t, int64_t> gaps;  // begin -> length, below the end of the last block
    int64_t end = 0;
    for (const auto& [begin, length] : used_) {
      if (begin > end) gaps[end] = begin - end;
      end = begin + length;
    }
    int64_t best = end, best_length = INT64_MAX;
    for (const auto& [begin, length] : gaps)
      if (length >= bytes && length < best_length) best = begin, best_length = length;
    used_[best] = bytes;
    peak_ = std::max(peak_, best + bytes);
    return best;
  }
  void release(int64_t offset) { used_.erase(offset); }
  int64_t live() const {
    int64_t sum = 0;
    for (const auto& [begin, length] : used_) sum += length;
    return sum;
  }
  int64_t peak() const { return peak_; }

 private:
  std::map<int64_t, int64_t> used_;
  int64_t peak_ = 0;
};

struct Live {
  Tensor cpu, meta;
  int64_t offset, bytes;
  unsigned char mark;
};

int64_t rounded_up(int64_t bytes) { return std::max<int64_t>(64, (bytes + 63) / 64 * 64); }

}  // namespace

TEST_CASE("the arena places as a naive model does, nothing overlaps, meta agrees with the CPU") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CpuArena arena(1 << 20);
    MetaTrace trace;
    MetaMemory meta(trace);
    NaiveModel model;
    std::vector<Live> live;
    char* base = nullptr;
    for (uint64_t i = 0; i < 600; ++i) {
      const Philox4 r = philox(seed, 0, i);
      if (live.empty() || (r.v[0] % 100 < 55 && live.size() < 60)) {
        const int64_t elements = r.v[1] % 8 == 0 ? 0 : r.v[2] % 3000;
        const DType type = r.v[3] % 2 ? DType::f32 : DType::bf16;
        Live one;
        one.bytes = elements * dtype_size(type);
        one.offset = model.allocate(rounded_up(one.bytes));
        one.cpu = arena.allocate(MemoryKind::activations, "x", type, {elements});
        one.meta = meta.allocate(MemoryKind::activations, "x", type, {elements});
        if (!base) base = static_cast<char*>(one.cpu.data) - one.offset;
        REQUIRE(static_cast<char*>(one.cpu.data) - base == one.offset);
        REQUIRE(one.offset % Memory::kAlignment == 0);
        one.mark = static_cast<unsigned char>(i % 251);
        std::memset(one.cpu.data, one.mark, one.bytes);
        live.push_back(one);
      } else {
        const size_t at = r.v[1] % live.size();
        const auto* bytes = static_cast<const unsigned char*>(live[at].cpu.data);
        for (int64_t b = 0; b < live[at].bytes; ++b)
          REQUIRE(bytes[b] == live[at].mark);  // nobody wrote into it
        model.release(live[at].offset);
        arena.release(live[at].cpu);
        meta.release(live[at].meta);
        REQUIRE_FALSE(live[at].cpu.defined());
        live.erase(live.begin() + static_cast<int64_t>(at));
      }
      REQUIRE(arena.live_bytes() == model.live());
      REQUIRE(arena.peak().arena_bytes == model.peak());
      REQUIRE(meta.peak().arena_bytes == model.peak());
      REQUIRE(meta.live_bytes() == model.live());
    }
    for (Live& l : live) arena.release(l.cpu);
    // All freed and joined: one block of the whole peak fits at the bottom again.
    const Tensor whole =
        arena.allocate(MemoryKind::temporaries, "whole", DType::u8, {arena.peak().arena_bytes});
    CHECK(static_cast<char*>(whole.data) == base);
  }
}

TEST_CASE("peak by kind adds up to the live bytes of that moment") {
  MetaTrace trace;
  MetaMemory memory(trace);
  memory.allocate(MemoryKind::parameters, "a", DType::f32, {100});               // 448 bytes
  Tensor b = memory.allocate(MemoryKind::temporaries, "b", DType::f32, {1000});  // 4032
  memory.release(b);
  memory.allocate(MemoryKind::gradients, "c", DType::f32, {10});  // 64, in the gap
  CHECK(memory.peak().arena_bytes == 448 + 4032);
  CHECK(memory.peak().live_bytes == 448 + 4032);
  CHECK(memory.peak().by_kind[static_cast<int>(MemoryKind::parameters)] == 448);
  CHECK(memory.peak().by_kind[static_cast<int>(MemoryKind::temporaries)] == 4032);
  CHECK(memory.peak().by_kind[static_cast<int>(MemoryKind::gradients)] == 0);
  CHECK(memory.live_bytes() == 448 + 64);
}

TEST_CASE("an exhausted arena says what was asked and what is live, largest first") {
  CpuArena arena(4096);
  arena.allocate(MemoryKind::gradients, "small", DType::f32, {16});
  arena.allocate(MemoryKind::parameters, "large", DType::f32, {512});
  CHECK_THROWS_WITH(arena.allocate(MemoryKind::activations, "logits", DType::bf16, {32, 32}),
                    "the arena of 4096 bytes cannot hold 'logits' bf16 [32, 32] (2048 bytes): the step asks "
                    "for more than its plan.\nlive now:\n            2048 bytes  parameters    large\n       "
                    "       64 bytes  gradients     small");
  // The failure changed nothing: what fits still fits, to the last byte.
  CHECK_NOTHROW(arena.allocate(MemoryKind::activations, "rest", DType::u8, {4096 - 2048 - 64}));
  CHECK_THROWS(arena.allocate(MemoryKind::activations, "one more", DType::u8, {1}));
}

TEST_CASE("a free block that ends at the top grows instead of being left behind") {
  CpuArena arena(64 * 10);
  arena.allocate(MemoryKind::activations, "a", DType::u8, {64});
  Tensor b = arena.allocate(MemoryKind::activations, "b", DType::u8, {64 * 3});
  arena.release(b);
  CHECK_NOTHROW(arena.allocate(MemoryKind::activations, "c", DType::u8, {64 * 9}));
  CHECK(arena.peak().arena_bytes == 64 * 10);
}

TEST_CASE("a release of what is not live is a defect that is caught") {
  CpuArena arena(4096);
  Tensor a = arena.allocate(MemoryKind::activations, "a", DType::u8, {128}), twice = a;
  Tensor inside = a.flat(64, {64});
  CHECK_THROWS_WITH(arena.release(inside),
                    Catch::Contains("expected a release of a live tensor, got offset"));
  arena.release(a);
  CHECK_THROWS_WITH(arena.release(twice), Catch::Contains("expected a release of a live tensor, got offset"));
}

TEST_CASE("requests that are said to stay below the peak raise none, and leave the arena as it was") {
  MetaTrace trace;
  MetaMemory whole(trace), shorter(trace);
  std::mt19937 random(1);
  const auto bytes = [&] { return Memory::kAlignment * static_cast<int64_t>(1 + random() % 64); };
  std::vector<int64_t> live;
  int left_out = 0, replayed = 0;
  for (int round = 0; round < 4000; ++round) {
    if (live.size() < 20 || random() % 2 == 0) {
      const int64_t n = bytes();
      live.push_back(whole.repeat(MemoryKind::temporaries, n));
      REQUIRE(shorter.repeat(MemoryKind::temporaries, n) == live.back());
    } else {
      std::swap(live[random() % live.size()], live.back());
      whole.end_repeat(live.back());
      shorter.end_repeat(live.back());
      live.pop_back();
    }
    // Allocations of a closed run, each released by the end.
    std::vector<int64_t> sizes(1 + random() % 6);
    for (int64_t& n : sizes) n = bytes();
    const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const bool below = shorter.below_peak(sum, sum);
    ++(below ? left_out : replayed);
    const uint32_t seed = static_cast<uint32_t>(random());
    for (MetaMemory* memory : {&whole, &shorter}) {
      if (below && memory == &shorter) continue;
      std::mt19937 same(seed);
      std::vector<int64_t> mine;
      for (size_t next = 0; next < sizes.size() || !mine.empty();)
        if (next < sizes.size() && (mine.empty() || same() % 2 == 0)) {
          mine.push_back(memory->repeat(MemoryKind::temporaries, sizes[next++]));
        } else {
          std::swap(mine[same() % mine.size()], mine.back());
          memory->end_repeat(mine.back());
          mine.pop_back();
        }
    }
    REQUIRE(whole.peak().arena_bytes == shorter.peak().arena_bytes);
    REQUIRE(whole.peak().live_bytes == shorter.peak().live_bytes);
  }
  CHECK(left_out > 1000);
  CHECK(replayed > 100);
}
