// Hopper's asynchronous instructions for tests without a GPU (hopper_cuda.h, wgmma_cuda.h). Only in builds
// with LTRAIN_CUDA_EMULATED.
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/wgmma_cuda.h"

namespace ltrain::cuda {
namespace {

constexpr uint32_t kSharedBase = 1024;  // address of a block's shared memory on the device
constexpr int kPart = 8;                // elements in 16 bytes, the unit of a swizzle
constexpr size_t kWarpLanes = kWarp;

/// The 8 bytes of an Mbarrier. Uninitialised memory reads as one without arrivals.
struct Phase {
  int32_t bytes;      ///< announced, not arrived
  uint16_t expected;  ///< arrivals of a phase; the highest bit is the parity of the running phase
  int16_t pending;    ///< arrivals missing in the running phase
};
static_assert(sizeof(Phase) == sizeof(Mbarrier));
constexpr uint16_t kParity = 0x8000;

struct BulkCopy {
  char* to;
  Mbarrier* barrier;
  int bytes;
  const char* from;  ///< null: a box
  TensorMap map;
  std::array<int64_t, 4> at;
};

struct BulkStore {
  size_t thread;
  const char* from;
  TensorMap map;
  std::array<int64_t, 4> at;
  std::vector<char> bytes;  ///< contents at the start of the store
  bool committed = false;
};

struct Product {
  EmulatedProduct p;
  std::vector<uint16_t> operands;  ///< held by a warp's first lane: contents at the start of the wgmma
};

struct Lane {
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
  std::map<float*, std::vector<float>> sums;  ///< final values of accumulators in flight
  bool fenced = false;
  bool shown = false;  ///< its writes to shared memory are visible since a lane of its warp began to store it
};

struct Begun {
  uint64_t a, b;
  int n;
};

struct State {
  char* shared = nullptr;
  int64_t bytes = 0;
  size_t threads = 0;
  std::vector<Lane> lanes;  ///< allocated on first use; most kernels have no wgmmas
  std::vector<BulkCopy> copies;
  std::vector<BulkStore> stores;
  std::set<Mbarrier*> hidden;              ///< initialised, but not visible to the copies
  std::vector<std::vector<Begun>> groups;  ///< wgmmas of each warpgroup, in order
  std::vector<size_t> done;                ///< wgmmas finished by each warp
};

thread_local State* state = nullptr;
thread_local State memory;

size_t thread() { return threadIdx.x; }
std::vector<Lane>& lanes() {
  if (state->lanes.empty()) {
    state->lanes.resize(state->threads);
    state->groups.resize((state->threads + kWarpgroup - 1) / kWarpgroup);
    state->done.assign((state->threads + kWarpLanes - 1) / kWarpLanes, 0);
  }
  return state->lanes;
}
Lane& lane_of_thread() { return lanes()[thread()]; }

/// Address in shared memory after the 128-byte swizzle.
uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

Phase phase_of(const Mbarrier* barrier) {
  LT_CHECK(reinterpret_cast<uintptr_t>(barrier) % 8 == 0,
           "expected an 8-byte aligned mbarrier, got address {}", static_cast<const void*>(barrier));
  Phase p;
  std::memcpy(&p, barrier, sizeof p);
  LT_CHECK(p.expected & ~kParity, "expected an initialised mbarrier, got one that was not initialised");
  return p;
}

/// Ends the phase if nothing is missing.
void set_phase(Mbarrier* barrier, Phase p) {
  LT_CHECK(p.pending >= 0,
           "expected no more arrivals at an mbarrier than it was initialised for, got {} more", -p.pending);
  if (p.pending == 0 && p.bytes == 0) {
    p.expected ^= kParity;
    p.pending = static_cast<int16_t>(p.expected & ~kParity);
  }
  std::memcpy(barrier, &p, sizeof p);
  emulated_moved();
}

/// Calls f(address in shared memory, address in global memory or null) for each element of a box.
template <class F>
void each_element(const TensorMap& map, const std::array<int64_t, 4>& first, uint32_t shared, F&& f) {
  const MapShape& m = map.shape;
  for (int r = 0; r < m.box_rows; ++r) {
    const std::array<int64_t, 4> at{first[0], first[1] + r, first[2], first[3]};
    bool inside = true;
    const char* row = map.data;
    for (size_t d = 1; d < 4; ++d) {
      inside = inside && at[d] >= 0 && at[d] < m.dims[d];
      row += at[d] * m.strides[d - 1];
    }
    for (int col = 0; col < kPanel; ++col) {
      const uint32_t place = swizzled(shared + static_cast<uint32_t>(r * kPanelBytes + 2 * col));
      const bool there = inside && at[0] + col >= 0 && at[0] + col < m.dims[0];
      f(state->shared + (place - kSharedBase), there ? row + 2 * (at[0] + col) : nullptr);
    }
  }
}

void land(const BulkCopy& c) {
  if (c.from) {
    emulated_copied(c.from, c.bytes, false);
    std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
    return;
  }
  each_element(c.map, c.at, shared_address(c.to), [](char* to, const char* from) {
    if (from) emulated_copied(from, 2, false);
    from ? std::memcpy(to, from, 2) : std::memset(to, 0, 2);
  });
}

void leave(const BulkStore& s) {
  LT_CHECK(std::memcmp(s.from, s.bytes.data(), s.bytes.size()) == 0,
           "expected unchanged memory until a bulk store is done, but shared memory that a bulk store reads "
           "was changed before it was done");
  each_element(s.map, s.at, shared_address(s.from), [](const char* from, const char* to) {
    if (!to) return;
    emulated_copied(to, 2, true);
    std::memcpy(const_cast<char*>(to), from, 2);
  });
}

void begin_copy(const BulkCopy& c, size_t alignment) {
  phase_of(c.barrier);
  const int64_t first = c.to - state->shared;
  LT_CHECK(first >= 0 && first % static_cast<int64_t>(alignment) == 0 && first + c.bytes <= state->bytes,
           "expected a bulk copy within the block's {} bytes of shared memory at a multiple of {}, got a "
           "bulk copy of {} bytes to {}",
           state->bytes, alignment, c.bytes, first);
  LT_CHECK(!state->hidden.contains(c.barrier),
           "expected an mbarrier that is visible to copies, got a bulk copy to an mbarrier before "
           "mbarrier_init_done()");
  std::memset(c.to, 0xff, static_cast<size_t>(c.bytes));
  state->copies.push_back(c);
  emulated_moved();
}

/// Reads rows or columns [first, first + count) of an operand at 16 contracted elements, the latter
/// innermost.
void read_operand(uint64_t descriptor, Along along, int first, int count, std::vector<uint16_t>& to) {
  const auto field = [&](int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4; };
  const uint32_t start = field(0), leading = field(16), stride = field(32);
  const int base = static_cast<int>(descriptor >> 49 & 7), mode = static_cast<int>(descriptor >> 62);
  LT_CHECK(
      base == 0 && mode <= 1,
      "expected a matrix descriptor of base offset 0 and swizzle 0 or 1, got base offset {} and swizzle {}",
      base, mode);
  const auto part_at = [&](uint32_t address) {  // 16 bytes
    if (mode == 1) address = swizzled(address);
    LT_CHECK(address >= kSharedBase && address - kSharedBase + 16 <= state->bytes,
             "expected a matrix descriptor within the block's {} bytes of shared memory, got address {}",
             state->bytes, address);
    return reinterpret_cast<const uint16_t*>(state->shared + (address - kSharedBase));
  };
  const size_t begin = to.size();
  to.resize(begin + static_cast<size_t>(16 * count));
  uint16_t* const out = to.data() + begin;
  if (along == Along::columns) {
    for (int r = 0; r < count; ++r)
      for (int half = 0; half < 2; ++half) {
        const auto row = static_cast<uint32_t>(first + r), k = static_cast<uint32_t>(half);
        const uint16_t* part = part_at(start + row / 8 * stride +
                                       (mode == 1 ? row % 8 * 128 + k * 16 : row % 8 * 16 + k * leading));
        std::copy(part, part + kPart, out + 16 * r + kPart * half);
      }
    return;
  }
  for (uint32_t k = 0; k < 16; ++k)
    for (int c = 0; c < count; c += kPart) {
      const auto col = static_cast<uint32_t>(first + c);
      const uint16_t* part =
          part_at(mode == 1 ? start + col / kPanel * leading + k / 8 * stride + k % 8 * 128 + col % kPanel * 2
                            : start + col / 8 * stride + k / 8 * leading + k % 8 * 16);
      for (int i = 0; i < kPart; ++i) out[16 * (c + i) + static_cast<int>(k)] = part[i];
    }
}

/// Elements of shared memory that a warp's part of a wgmma reads: columns of the right operand, then rows of
/// the left one.
std::vector<uint16_t> read_operands(const EmulatedProduct& p, size_t warp) {
  std::vector<uint16_t> words;
  read_operand(p.b_shared, p.b_along, 0, p.n, words);
  if (!p.a) read_operand(p.a_shared, p.a_along, static_cast<int>(16 * (warp % 4)), 16, words);
  return words;
}

float value(uint16_t bits, bool is_bf16) {
  bf16 b;
  f16 h;
  b.bits = h.bits = bits;
  return is_bf16 ? static_cast<float>(b) : static_cast<float>(h);
}

/// One wgmma for the lanes of a warp, which all have started it.
void multiply(size_t warp, const std::array<const Product*, kWarpLanes>& of) {
  const EmulatedProduct& p = of[0]->p;
  for (const Product* o : of)
    LT_CHECK(o->p.n == p.n && o->p.b_shared == p.b_shared && (o->p.a || o->p.a_shared == p.a_shared) &&
                 !o->p.a == !p.a && o->p.add == p.add,
             "expected the same wgmma in all lanes of a warp, got lanes with different ones");
  auto& begun = state->groups[warp / 4];
  const size_t at = state->done[warp]++;
  if (at == begun.size()) begun.push_back({p.a_shared, p.b_shared, p.n});
  LT_CHECK(begun[at].a == p.a_shared && begun[at].b == p.b_shared && begun[at].n == p.n,
           "expected the same wgmma in all warps of a warpgroup, got warps with different ones");
  const std::vector<uint16_t> words = read_operands(p, warp);
  LT_CHECK(words == of[0]->operands,
           "expected unchanged operands until a wgmma is done, but shared memory that it reads was changed "
           "before it was done");

  const size_t n = static_cast<size_t>(p.n);
  std::vector<float> b(16 * n), sum(16 * n, 0.0f);  // both have columns innermost
  for (size_t c = 0; c < n; ++c)
    for (size_t k = 0; k < 16; ++k) b[k * n + c] = value(words[16 * c + k], p.bf16);
  float a[16][16];
  for (size_t r = 0; r < 16; ++r)
    for (size_t k = 0; k < 16; ++k) {
      uint16_t bits;
      if (p.a) {
        const uint32_t word = of[r % 8 * 4 + k % 8 / 2]->p.a[r / 8 + k / 8 * 2];
        bits = static_cast<uint16_t>(k % 2 ? word >> 16 : word);
      } else {
        bits = words[16 * n + 16 * r + k];
      }
      a[r][k] = value(bits, p.bf16);
    }
  for (size_t r = 0; r < 16; ++r)
    for (size_t k = 0; k < 16; ++k)
      for (size_t c = 0; c < n; ++c) sum[r * n + c] += a[r][k] * b[k * n + c];
  for (size_t lane = 0; lane < kWarpLanes; ++lane) {
    auto& to = state->lanes[kWarpLanes * warp + lane].sums.at(of[lane]->p.c);
    for (size_t i = 0; i < n / 2; ++i) {
      const float s = sum[(lane / 4 + i % 4 / 2 * 8) * n + i / 4 * 8 + lane % 4 * 2 + i % 2];
      to[i] = p.add ? to[i] + s : s;
    }
  }
}

/// Finishes the oldest group of a warp's lanes.
void finish_group(size_t warp) {
  Lane* const lanes = &state->lanes[kWarpLanes * warp];
  for (size_t i = 0; i < lanes[0].groups.front().size(); ++i) {
    std::array<const Product*, kWarpLanes> of;
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      LT_CHECK(lanes[lane].groups.size() == lanes[0].groups.size() &&
                   lanes[lane].groups.front().size() == lanes[0].groups.front().size(),
               "expected the same groups of wgmmas in all lanes of a warp, got lanes with different ones");
      of[lane] = &lanes[lane].groups.front()[i];
    }
    multiply(warp, of);
  }
  for (size_t lane = 0; lane < kWarpLanes; ++lane) {
    Lane& l = lanes[lane];
    const std::vector<Product> group = std::move(l.groups.front());
    l.groups.pop_front();
    std::set<float*> later;
    for (const auto& g : l.groups)
      for (const Product& o : g) later.insert(o.p.c);
    for (const Product& o : l.open) later.insert(o.p.c);
    for (const Product& o : group)
      if (const auto found = l.sums.find(o.p.c); found != l.sums.end() && !later.contains(o.p.c)) {
        std::copy(found->second.begin(), found->second.end(), o.p.c);
        l.sums.erase(found);
      }
  }
}

}  // namespace

void emulated_hopper_begin(int threads, void* shared, int64_t bytes) {
  memory.shared = static_cast<char*>(shared), memory.bytes = bytes;
  memory.threads = static_cast<size_t>(threads);
  memory.lanes.clear(), memory.copies.clear(), memory.stores.clear(), memory.hidden.clear();
  memory.groups.clear(), memory.done.clear();
  state = &memory;
}

void emulated_hopper_end() {
  LT_CHECK(state->copies.empty(),
           "expected a wait for all copies, but a kernel ended before {} of its bulk copies",
           state->copies.size());
  LT_CHECK(state->stores.empty(),
           "expected a wait for all stores, but a kernel ended before {} of its bulk stores",
           state->stores.size());
  for (const Lane& l : state->lanes)
    LT_CHECK(l.open.empty() && l.groups.empty(),
             "expected a wait for all wgmmas, but a kernel ended before {} groups of them",
             l.groups.size() + !l.open.empty());
  state = nullptr;
}

void emulated_hopper_drop() { state = nullptr; }

uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - state->shared) + kSharedBase;
}

void mbarrier_init(Mbarrier* barrier, int arrivals) {
  LT_CHECK(arrivals > 0 && arrivals < 1 << 10, "expected an mbarrier of 1 to 1023 arrivals, got {}",
           arrivals);
  const Phase p{0, static_cast<uint16_t>(arrivals), static_cast<int16_t>(arrivals)};
  std::memcpy(barrier, &p, sizeof p);
  state->hidden.insert(barrier);
}

void mbarrier_init_done() { state->hidden.clear(); }

void mbarrier_arrive(Mbarrier* barrier) {
  Phase p = phase_of(barrier);
  --p.pending;
  set_phase(barrier, p);
}

void mbarrier_expect(Mbarrier* barrier, int bytes) {
  Phase p = phase_of(barrier);
  p.bytes += bytes;
  --p.pending;
  set_phase(barrier, p);
}

void mbarrier_wait(Mbarrier* barrier, int parity) {
  const auto ended = [&] { return (phase_of(barrier).expected >= kParity) != (parity != 0); };
  emulated_wait_until(
      [&] {
        if (ended()) return true;
        Phase p = phase_of(barrier);
        if (p.pending > 0) return false;
        auto& copies = state->copies;
        for (size_t i = 0; i < copies.size();) {
          if (copies[i].barrier != barrier) {
            ++i;
            continue;
          }
          land(copies[i]);
          p.bytes -= copies[i].bytes;
          copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(i));
        }
        LT_CHECK(p.bytes >= 0,
                 "expected no more bytes than were announced, got {} bytes more than an mbarrier expects",
                 -p.bytes);
        set_phase(barrier, p);
        return ended();
      },
      "an mbarrier");
}

void load_box(void* shared, const TensorMap& map, Mbarrier* barrier, int64_t col, int64_t row, int64_t third,
              int64_t fourth) {
  begin_copy({static_cast<char*>(shared),
              barrier,
              map.shape.box_rows * kPanelBytes,
              nullptr,
              map,
              {col, row, third, fourth}},
             128);
}

void load_bytes(void* shared, const void* from, int bytes, Mbarrier* barrier) {
  LT_CHECK(bytes % 16 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0,
           "expected a bulk copy with a size and a source in multiples of 16 bytes, got {} bytes from {}",
           bytes, from);
  begin_copy({static_cast<char*>(shared), barrier, bytes, static_cast<const char*>(from), {}, {}}, 16);
}

void store_box(const TensorMap& map, const void* shared, int64_t col, int64_t row, int64_t third,
               int64_t fourth) {
  const char* const from = static_cast<const char*>(shared);
  const int64_t first = from - state->shared, bytes = map.shape.box_rows * kPanelBytes;
  LT_CHECK(first >= 0 && first % 128 == 0 && first + bytes <= state->bytes,
           "expected a bulk store from a multiple of 128 within the block's {} bytes of shared memory, got a "
           "bulk store of {} bytes from {}",
           state->bytes, bytes, first);
  const size_t warp = thread() / kWarpLanes * kWarpLanes;
  for (size_t lane = warp; lane < std::min(warp + kWarpLanes, state->threads); ++lane)
    LT_CHECK(
        lanes()[lane].shown,
        "expected show_to_products() before a bulk store, got a bulk store of what lane {} has not shown",
        lane - warp);
  state->stores.push_back({thread(), from, map, {col, row, third, fourth}, {from, from + bytes}});
}

void commit_stores() {
  for (BulkStore& s : state->stores)
    if (s.thread == thread()) s.committed = true;
  const size_t warp = thread() / kWarpLanes * kWarpLanes;
  for (size_t lane = warp; lane < std::min(warp + kWarpLanes, state->threads); ++lane)
    lanes()[lane].shown = false;
}

void wait_for_stores() {
  std::erase_if(state->stores, [](const BulkStore& s) {
    const bool mine = s.committed && s.thread == thread();
    if (mine) leave(s);
    return mine;
  });
}

void show_to_products() { lane_of_thread().shown = true; }

TensorMap make_tensor_map(const void* data, const MapShape& s) {
  LT_CHECK(reinterpret_cast<uintptr_t>(data) % 16 == 0,
           "expected 16-byte aligned memory for a tensor map, got {}, which is not aligned", data);
  for (size_t d = 0; d < 4; ++d)
    LT_CHECK(s.dims[d] > 0 && s.dims[d] <= int64_t{1} << 32,
             "expected a tensor map with dims of 1 to 2^32, got {} in dim {}", s.dims[d], d);
  for (int64_t stride : s.strides)
    LT_CHECK(stride > 0 && stride % 16 == 0 && stride < int64_t{1} << 40,
             "expected a tensor map with strides of multiples of 16 bytes below 2^40, got stride {}", stride);
  LT_CHECK(s.box_rows > 0 && s.box_rows <= 256,
           "expected a tensor map with boxes of 1 to 256 rows, got boxes of {} rows", s.box_rows);
  return {static_cast<const char*>(data), s};
}

void wgmma_fence() { lane_of_thread().fenced = true; }

void emulated_product(const EmulatedProduct& p) {
  Lane& l = lane_of_thread();
  LT_CHECK(state->threads % kWarpgroup == 0,
           "expected a wgmma in a block of full warpgroups, got a block of {} threads", state->threads);
  LT_CHECK(l.fenced, "expected a fence before a wgmma, got a wgmma without a wgmma.fence before it");
  auto& sums = l.sums[p.c];
  if (sums.empty()) sums.assign(p.c, p.c + p.n / 2);
  LT_CHECK(sums.size() == static_cast<size_t>(p.n / 2), "expected an accumulator of {} floats, got {}",
           sums.size(), p.n / 2);
  std::fill(p.c, p.c + p.n / 2, std::nanf(""));
  l.open.push_back(
      {p, thread() % kWarpLanes == 0 ? read_operands(p, thread() / kWarpLanes) : std::vector<uint16_t>()});
}

void wgmma_commit() {
  Lane& l = lane_of_thread();
  l.groups.push_back(std::move(l.open));
  l.open.clear();
}

void emulated_wgmma_wait(size_t groups_left) {
  __syncwarp();  // all lanes have started theirs
  if (thread() % kWarpLanes == 0)
    while (lane_of_thread().groups.size() > groups_left) finish_group(thread() / kWarpLanes);
  __syncwarp();
  lane_of_thread().fenced = false;
}

}  // namespace ltrain::cuda
