// The emulated twins of Hopper's instructions (hopper_cuda.h, wgmma_cuda.h): single products against a plain
// loop, and that what is used wrongly is seen.
#ifdef LTRAIN_CUDA_EMULATED
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/cuda/matrix_cuda.h"
#include "kernels/cuda/persistent_cuda.h"
#include "kernels/cuda/wgmma_cuda.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::cuda;
using namespace ltrain::test;

namespace {

enum class Wrong { nothing, stride, panel, swizzle, no_fence, no_wait, overwritten, early, weights_changed };

constexpr int kSummed = 128;  // two panels

/// Small whole numbers: sums are exact in any order.
template <class T>
std::vector<T> numbers(int64_t n, uint64_t seed) {
  std::vector<T> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = T(std::round(static_cast<float>(random_value(seed, static_cast<int64_t>(i), 3))));
  return v;
}

template <class T>
TensorMap map_of(const std::vector<T>& v, int64_t rows, int64_t cols, int box_rows) {
  return make_tensor_map(v.data(),
                         {{cols, rows, 1, 1}, {2 * cols, 2 * cols * rows, 2 * cols * rows}, box_rows});
}

/// c (64, kN) = a b, or its mistake. A tile is (64, kSummed) or (kSummed, 64), and so for b.
template <class T, int kN, Along kA, Along kB, bool kRegisters>
std::vector<float> product(const std::vector<T>& a, const std::vector<T>& b, Wrong wrong) {
  const int a_rows = kA == Along::columns ? 64 : kSummed, b_rows = kB == Along::columns ? kN : kSummed;
  const int a_cols = kA == Along::columns ? kSummed : 64, b_cols = kB == Along::columns ? kSummed : kN;
  const TensorMap a_map = map_of(a, a_rows, a_cols, a_rows), b_map = map_of(b, b_rows, b_cols, b_rows);
  std::vector<float> c(64 * kN);
  const int64_t bytes = 2 * kSummed * (64 + kN);
  emulate(dim3(1), kWarpgroup, bytes + (64 << 10), [&] {  // wrong descriptors lead beyond
    T* const as = shared_boxes<T>();
    T* const bs = as + 64 * kSummed;
    Mbarrier* const there = reinterpret_cast<Mbarrier*>(bs + kN * kSummed);
    if (threadIdx.x == 0) mbarrier_init(there, 1), mbarrier_init_done();
    __syncthreads();
    if (threadIdx.x == 0) {
      mbarrier_expect(there, static_cast<int>(bytes));
      for (int p = 0; p < a_cols / kPanel; ++p)
        load_box(as + p * kPanel * a_rows, a_map, there, p * kPanel, 0, 0, 0);
      for (int p = 0; p < b_cols / kPanel; ++p)
        load_box(bs + p * kPanel * b_rows, b_map, there, p * kPanel, 0, 0, 0);
    }
    if (wrong != Wrong::early) mbarrier_wait(there, 0);
    const auto descriptor = [&](Along along, const T* tile, int rows, int k) {
      uint64_t d = along == Along::columns ? along_columns(tile, rows, 0, k) : along_rows(tile, rows, 0, k);
      if (wrong == Wrong::stride) d = (d & ~(uint64_t{0x3fff} << 32)) | uint64_t{512 >> 4} << 32;
      if (wrong == Wrong::panel) d = (d & ~(uint64_t{0x3fff} << 16)) | uint64_t{1024 >> 4} << 16;
      if (wrong == Wrong::swizzle) d &= ~(uint64_t{3} << 62);
      return d;
    };
    const int lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * 16 + lane / 4;
    float sum[kN / 2];
    uint32_t weights[kSummed / 16][4];
    const auto element = [&](int r, int k) {
      return static_cast<float>(kA == Along::columns ? a[static_cast<size_t>(r * kSummed + k)]
                                                     : a[static_cast<size_t>(k * 64 + r)]);
    };
    for (int k = 0; k < kSummed; k += 16)
      for (int i = 0; i < 4; ++i) {
        const int r = row + i % 2 * 8, s = k + lane % 4 * 2 + i / 2 * 8;
        weights[k / 16][i] = pack_pair<T>(element(r, s), element(r, s + 1));
      }
    if (wrong != Wrong::no_fence) wgmma_fence();
    for (int k = 0; k < kSummed; k += 16) {
      if constexpr (kRegisters) {
        wgmma<T, kN, kB>(sum, weights[k / 16], descriptor(kB, bs, b_rows, k), k > 0);
      } else {
        wgmma<T, kN, kA, kB>(sum, descriptor(kA, as, a_rows, k), descriptor(kB, bs, b_rows, k), k > 0);
      }
    }
    wgmma_commit();
    if (wrong == Wrong::weights_changed) weights[3][1] ^= 0x80008000;
    if (wrong == Wrong::overwritten && threadIdx.x == 0) bs[0] = T(7.0f);
    if (wrong == Wrong::early) mbarrier_wait(there, 0);
    std::vector<float> seen;
    if (wrong == Wrong::no_wait) seen.assign(sum, sum + kN / 2);
    wgmma_wait<0>();
    for (int i = 0; i < kN / 2; ++i)
      c[static_cast<size_t>((row + i % 4 / 2 * 8) * kN + i / 4 * 8 + lane % 4 * 2 + i % 2)] =
          seen.empty() ? sum[i] : seen[static_cast<size_t>(i)];
  });
  return c;
}

template <class T, int kN, Along kA, Along kB, bool kRegisters>
void check_product(bool panels_matter) {
  CAPTURE(kN, kA == Along::rows, kB == Along::rows, kRegisters);
  const auto a = numbers<T>(64 * kSummed, 3), b = numbers<T>(kN * kSummed, 4);
  std::vector<float> plain(64 * kN);
  for (size_t r = 0; r < 64; ++r)
    for (size_t c = 0; c < kN; ++c)
      for (size_t k = 0; k < kSummed; ++k)
        plain[r * kN + c] += static_cast<float>(kA == Along::columns ? a[r * kSummed + k] : a[k * 64 + r]) *
                             static_cast<float>(kB == Along::columns ? b[c * kSummed + k] : b[k * kN + c]);
  const auto run = [&](Wrong wrong) { return product<T, kN, kA, kB, kRegisters>(a, b, wrong); };
  REQUIRE(run(Wrong::nothing) == plain);
  REQUIRE(run(Wrong::stride) != plain);
  REQUIRE(run(Wrong::swizzle) != plain);
  REQUIRE((run(Wrong::panel) != plain) == panels_matter);
  const auto unfinished = run(Wrong::no_wait);
  REQUIRE(std::all_of(unfinished.begin(), unfinished.end(), [](float x) { return std::isnan(x); }));
  if (kRegisters) REQUIRE(run(Wrong::weights_changed) != plain);
  REQUIRE_THROWS_WITH(run(Wrong::no_fence), Catch::Contains("without a wgmma.fence"));
  REQUIRE_THROWS_WITH(run(Wrong::overwritten), Catch::Contains("was changed before it was done"));
  REQUIRE_THROWS_WITH(run(Wrong::early), Catch::Contains("was changed before it was done"));
}

template <class T>
void check_products() {
  constexpr Along columns = Along::columns, rows = Along::rows;
  check_product<T, 64, columns, columns, false>(false);
  check_product<T, 64, columns, rows, false>(false);
  check_product<T, 64, rows, columns, false>(false);
  check_product<T, 64, rows, rows, false>(false);
  check_product<T, 64, columns, columns, true>(false);
  check_product<T, 64, columns, rows, true>(false);
  check_product<T, 96, columns, columns, false>(false);
  check_product<T, 128, columns, columns, false>(false);
  check_product<T, 128, columns, rows, false>(true);
  check_product<T, 128, columns, columns, true>(false);
  check_product<T, 128, columns, rows, true>(true);
}

/// A block of two warpgroups; `body` gets an mbarrier of one arrival in shared memory, and what lies behind.
void with_barrier(const std::function<void(Mbarrier*, char*)>& body) {
  emulate(dim3(1), 2 * kWarpgroup, 64 << 10, [&] {
    Mbarrier* const b = shared_boxes<Mbarrier>();
    if (threadIdx.x == 0) mbarrier_init(b, 1), mbarrier_init_done();
    __syncthreads();
    body(b, shared_boxes<char>() + kSwizzleAtom);
  });
}

}  // namespace

TEST_CASE("wgmma: every form of its operands, and each mistake") {
  check_products<bf16>();
  check_products<f16>();
}

TEST_CASE("wgmma: a group that is not waited for stays unseen, one before it is there") {
  const auto ones = std::vector<bf16>(64 * 64, bf16(1.0f));
  const TensorMap map = map_of(ones, 64, 64, 64);
  with_barrier([&](Mbarrier* there, char* at) {
    if (threadIdx.x == 0) mbarrier_expect(there, 64 * kPanelBytes), load_box(at, map, there, 0, 0, 0, 0);
    mbarrier_wait(there, 0);
    float first[32], second[32];
    wgmma_fence();
    wgmma<bf16, 64>(first, along_columns(at, 64, 0, 0), along_columns(at, 64, 0, 0), false);
    wgmma_commit();
    wgmma<bf16, 64>(second, along_columns(at, 64, 0, 0), along_columns(at, 64, 0, 0), false);
    wgmma<bf16, 64>(second, along_columns(at, 64, 0, 16), along_columns(at, 64, 0, 16), true);
    wgmma_commit();
    wgmma_wait<1>();
    LT_CHECK(first[5] == 16 && std::isnan(second[5]), "{} and {}", first[5], second[5]);
    wgmma_wait<0>();
    LT_CHECK(second[5] == 32, "{}", second[5]);
  });
}

TEST_CASE("bulk copies: zeros beyond the tensor, in four dims, and NaN until they are waited for") {
  // Two samples of two runs of 5 rows of 64 columns.
  std::vector<bf16> v(2 * 2 * 5 * 64);
  for (size_t i = 0; i < v.size(); ++i) v[i] = bf16(static_cast<float>(1 + i / 64));
  const TensorMap map = make_tensor_map(v.data(), {{64, 5, 2, 2}, {128, 5 * 128, 10 * 128}, 8});
  with_barrier([&](Mbarrier* there, char* at) {
    bf16* const tile = reinterpret_cast<bf16*>(at);
    if (threadIdx.x == 0) {
      mbarrier_expect(there, 8 * kPanelBytes), load_box(at, map, there, 0, 2, 1, 1);
      LT_CHECK(std::isnan(static_cast<float>(tile[0])), "there at once");
    }
    mbarrier_wait(there, 0);
    for (int r = 0; r < 8; ++r)
      for (int c = 0; c < 64; ++c) {
        const float want = r < 3 ? static_cast<float>(1 + 15 + 2 + r) : 0;  // run 3 of all, row 2 + r of it
        LT_CHECK(tile[64 * r + c] == want, "row {}: {}, not {}", r, static_cast<float>(tile[64 * r + c]),
                 want);
      }
  });
}

TEST_CASE("bulk stores: as boxes lie, nothing beyond the tensor, and not before they are waited for") {
  // Two samples of two runs of 5 rows of 64 columns, in a sixth row of which nothing may be written.
  std::vector<bf16> to(2 * 2 * 6 * 64, bf16(-1.0f));
  const TensorMap map = make_tensor_map(to.data(), {{64, 5, 2, 2}, {128, 6 * 128, 12 * 128}, 8});
  const auto run = [&](bool shown, bool changed, bool waited) {
    with_barrier([&](Mbarrier*, char* at) {
      bf16* const box = reinterpret_cast<bf16*>(at);
      if (threadIdx.x < 8)
        for (int c = 0; c < 64; ++c)
          box[64 * threadIdx.x + (c / 8 ^ threadIdx.x) * 8 + c % 8] = bf16(static_cast<float>(threadIdx.x));
      if (shown || threadIdx.x != 3) show_to_products();
      __syncthreads();
      if (threadIdx.x != 0) return;
      store_box(map, box, 0, 2, 1, 1), commit_stores();
      LT_CHECK(to[(3 * 6 + 2) * 64] == bf16(-1.0f), "there at once");
      if (changed) box[70] = bf16(9.0f);
      if (waited) wait_for_stores();
    });
  };
  run(true, false, true);
  for (size_t i = 0; i < to.size(); ++i) {
    const size_t row = i / 64, of_run = row % 6;
    const float want = row / 6 == 3 && of_run >= 2 && of_run < 5 ? static_cast<float>(of_run - 2) : -1.0f;
    CAPTURE(row, i % 64);
    REQUIRE(static_cast<float>(to[i]) == want);
  }
  std::fill(to.begin(), to.end(), bf16(-1.0f));
  REQUIRE_THROWS_WITH(run(false, false, true), Catch::Contains("what lane 3 has not shown"));
  REQUIRE_THROWS_WITH(run(true, true, true), Catch::Contains("that a bulk store reads was changed"));
  REQUIRE_THROWS_WITH(run(true, false, false), Catch::Contains("ended before 1 of its bulk stores"));
}

TEST_CASE("blocks that stay take each piece of the work once, and the counter is 0 again") {
  unsigned counter = 0;
  for (const auto& [blocks, pieces] : {std::pair{1u, 7}, {3u, 3}, {3u, 4}, {3u, 40}, {40u, 41}}) {
    CAPTURE(blocks, pieces);
    std::vector<int> taken(static_cast<size_t>(pieces));
    std::vector<unsigned> by(static_cast<size_t>(pieces));
    emulate(dim3(blocks), kWarp, 0, [&] {
      if (threadIdx.x == 0)
        for (int i = static_cast<int>(blockIdx.x); i < pieces; i = next_piece(&counter, pieces))
          ++taken.at(static_cast<size_t>(i)), by[static_cast<size_t>(i)] = blockIdx.x;
    });
    REQUIRE(taken == std::vector<int>(taken.size(), 1));
    REQUIRE(counter == 0);
    if (pieces > 2 * static_cast<int>(blocks)) REQUIRE(by.back() == blocks - 1);
  }
  const auto wrongly = [&](auto f) {
    counter = 0;
    emulate(dim3(2), kWarp, 0, [&] {
      if (threadIdx.x == 0) f();
    });
  };
  REQUIRE_THROWS_WITH(wrongly([&] { next_piece(&counter, 5); }), Catch::Contains("before it was told"));
  REQUIRE_THROWS_WITH(wrongly([&] { next_piece(&counter, 2), next_piece(&counter, 2); }),
                      Catch::Contains("asks for work after it was told"));
  REQUIRE_THROWS_WITH(wrongly([&] { next_piece(&counter, 1); }), Catch::Contains("2 blocks for 1 pieces"));
}

TEST_CASE("a block gets the shared memory that an H100 has for one, and no more") {
  int ran = 0;
  emulate(dim3(1), 1, 227 << 10, [&] { ++ran; });
  REQUIRE(ran == 1);
  REQUIRE_THROWS_WITH(emulate(dim3(1), 1, (227 << 10) + 1, [&] { ++ran; }),
                      Catch::Contains("blocks with 232449 bytes of shared memory: expected at most 232448"));
  REQUIRE(ran == 1);
}

TEST_CASE("Hopper's copies and barriers used wrongly are errors") {
  const auto ones = std::vector<bf16>(64 * 64, bf16(1.0f));
  const TensorMap map = map_of(ones, 64, 64, 64);
  const auto one = [](auto f) {
    return [f](Mbarrier* b, char* at) {
      if (threadIdx.x == 0) f(b, at);
    };
  };
  REQUIRE_THROWS_WITH(with_barrier(one([&](Mbarrier* b, char* at) { load_box(at, map, b, 0, 0, 0, 0); })),
                      Catch::Contains("ended before 1 of its bulk copies"));
  REQUIRE_THROWS_WITH(with_barrier(one([&](Mbarrier* b, char* at) {
                        mbarrier_expect(b, 100), load_box(at, map, b, 0, 0, 0, 0), mbarrier_wait(b, 0);
                      })),
                      Catch::Contains("more than an mbarrier expects"));
  REQUIRE_THROWS_WITH(
      with_barrier(one([&](Mbarrier* b, char* at) { load_box(at + 64, map, b, 0, 0, 0, 0); })),
      Catch::Contains("a bulk copy of 8192 bytes to"));
  REQUIRE_THROWS_WITH(with_barrier([&](Mbarrier* b, char*) { mbarrier_wait(b, 0); }),
                      Catch::Contains("all threads of a block wait, one for an mbarrier"));
  REQUIRE_THROWS_WITH(with_barrier(one([&](Mbarrier* b, char*) { mbarrier_wait(b + 1, 0); })),
                      Catch::Contains("was not initialised"));
  REQUIRE_THROWS_WITH(with_barrier(one([&](Mbarrier* b, char* at) {
                        mbarrier_init(b + 1, 1), load_box(at, map, b + 1, 0, 0, 0, 0);
                      })),
                      Catch::Contains("before mbarrier_init_done()"));
  REQUIRE_THROWS_WITH(with_barrier(one([](Mbarrier*, char*) { named_arrive(3, 64); })),
                      Catch::Contains("ended in a named barrier"));
  REQUIRE_THROWS_WITH(with_barrier([](Mbarrier*, char*) { named_sync(3, 512); }),
                      Catch::Contains("all threads of a block wait"));
  REQUIRE_THROWS_WITH(make_tensor_map(ones.data() + 1, map.shape), Catch::Contains("not aligned"));
  REQUIRE_THROWS_WITH(make_tensor_map(ones.data(), {{60, 64, 1, 1}, {120, 7680, 7680}, 64}),
                      Catch::Contains("stride 120"));
  REQUIRE_THROWS_WITH(make_tensor_map(ones.data(), {{64, 64, 1, 1}, {128, 8192, 8192}, 257}),
                      Catch::Contains("boxes of 257 rows"));
}

TEST_CASE("named barriers pass turns between warpgroups, and phases of an mbarrier have parities") {
  std::vector<int> order;
  with_barrier([&](Mbarrier* b, char*) {
    const int group = threadIdx.x / kWarpgroup;
    for (int turn = 0; turn < 3; ++turn) {
      if (group == 0 && turn > 0) named_sync(1, 2 * kWarpgroup);
      if (group == 1) named_sync(2, 2 * kWarpgroup);
      if (threadIdx.x % kWarpgroup == 0) order.push_back(group);
      if (group == 0) named_arrive(2, 2 * kWarpgroup);
      if (group == 1 && turn < 2) named_arrive(1, 2 * kWarpgroup);
    }
    for (int phase = 0; phase < 3; ++phase) {
      if (threadIdx.x == 200) mbarrier_arrive(b);
      mbarrier_wait(b, phase % 2);
      __syncthreads();
    }
  });
  REQUIRE(order == std::vector<int>{0, 1, 0, 1, 0, 1});
}
#endif
