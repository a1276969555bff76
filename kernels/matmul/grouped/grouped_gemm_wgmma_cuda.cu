// Grouped GEMM on Hopper. One warpgroup of a block copies chunks of operands, two multiply 64 rows of a tile
// each. Blocks are persistent: chunks of the next tile arrive while the output of a tile is written. This
// file also has the comparison with the kernels for all cards (grouped_gemm_check.h).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/matrix_cuda.h"
#include "kernels/cuda/persistent_cuda.h"
#include "kernels/cuda/wgmma_cuda.h"
#include "kernels/matmul/grouped/grouped_gemm_check.h"
#include "kernels/matmul/grouped/grouped_gemm_cuda.h"
#include "kernels/tensor/kernel_trial.h"

namespace ltrain {
namespace cuda {

/// Tile sizes of a kernel.
template <int cols>
struct HopperCut {
  static constexpr int kGroups = 2;                          ///< compute warpgroups
  static constexpr int kRows = 64 * kGroups, kCols = cols;   ///< rows and columns of a tile
  static constexpr int kHalf = 128, kHalves = cols / kHalf;  ///< columns of one wgmma, number of wgmmas
  static constexpr int kStages = cols == 256 ? 4 : 6;        ///< chunks in shared memory
  static constexpr int kLeft = kRows * kPanel, kPart = kLeft + cols * kPanel;  ///< elements
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  static constexpr int kFew = 24, kMany = 240;  ///< registers of a copying thread and of a computing thread
  static constexpr int kWriteBytes = 4 << 10;   ///< shared memory for each warp's output before it is stored
  static constexpr int64_t kShared =
      int64_t{2} * kStages * kPart + int64_t{4} * kGroups * kWriteBytes + 16 * kStages;
};

namespace {

template <GroupedProduct kKind>
struct Way {
  static constexpr bool kGradient = kKind == GroupedProduct::weight_gradient;
  static constexpr Along kLeft = kGradient ? Along::rows : Along::columns;
  static constexpr Along kRight = kKind == GroupedProduct::forward ? Along::columns : Along::rows;
};

#ifdef LT_HOPPER

/// Starts the copy of a chunk of an operand: kWide rows of kPanel contracted columns from (row, col) on, or
/// kPanel contracted rows of kWide columns.
template <Along kAlong, int kWide, class T>
__device__ __forceinline__ void load_part(T* to, const TensorMap& map, Mbarrier* there, int col, int64_t row,
                                          int64_t matrix) {
  if constexpr (kAlong == Along::columns) {
    load_box(to, map, there, col, row, matrix, 0);
  } else {
#pragma unroll
    for (int p = 0; p < kWide / kPanel; ++p)
      load_box(to + p * kPanel * kPanel, map, there, col + p * kPanel, row, matrix, 0);
  }
}

/// Descriptor of an operand's chunk, at its rows or columns from `first` on and 16 contracted elements from
/// `k` on.
template <Along kAlong, int kWide, class T>
__device__ __forceinline__ uint64_t operand(const T* part, int first, int k) {
  return kAlong == Along::columns ? along_columns(part, kWide, first, k) : along_rows(part, kPanel, first, k);
}

/// Clears the rows of a chunk from `count` on, in both operands: they hold rows of other groups.
template <class C, class T>
__device__ __forceinline__ void clear_rows(T* part, int count) {
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;
  for (int i = thread; i < C::kPart / 8; i += C::kGroups * kWarpgroup)  // 16 bytes each; 8 of them are a row
    if (i / 8 % kPanel >= count) *reinterpret_cast<Pack<uint32_t, 4>*>(part + 8 * i) = {};
}

#endif

/// n, k: rows and columns of a group's matrix.
template <class C, GroupedProduct kKind, class T, class O>
__global__ void __launch_bounds__(C::kThreads, 1)
    grouped_gemm_wgmma(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                       O* out, int n, int k, bool accumulate, const __grid_constant__ GroupTable table) {
#ifdef LT_HOPPER
  using W = Way<kKind>;
  T* const parts = shared_boxes<T>();
  char* const writing = reinterpret_cast<char*>(parts + C::kStages * C::kPart);
  Mbarrier* const there = reinterpret_cast<Mbarrier*>(writing + 4 * C::kGroups * C::kWriteBytes);
  Mbarrier* const free = there + C::kStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) mbarrier_init(there + i, 1), mbarrier_init(free + i, 4 * C::kGroups);
    mbarrier_init_done();
  }
  __syncthreads();

  const int cols = kKind == GroupedProduct::forward ? n : k;
  const auto tile_at = [&](int i) { return GroupTile(table, i, W::kGradient ? n : 0, C::kRows, C::kCols); };
  const auto summed_of = [&](const GroupTile& t) {
    return W::kGradient ? t.rows : kKind == GroupedProduct::forward ? k : n;
  };
  Ring<C::kStages> ring;
  if (threadIdx.x < kWarpgroup) {
    fewer_registers<C::kFew>();
    if (threadIdx.x == 0) {
      for (int i = static_cast<int>(blockIdx.x); i < table.tiles; i += static_cast<int>(gridDim.x)) {
        const GroupTile t = tile_at(i);
        const int summed = summed_of(t);
        for (int at = 0; at < summed; at += kPanel, ring.next()) {
          T *const left = parts + ring.stage * C::kPart, *const right = left + C::kLeft;
          Mbarrier* const barrier = there + ring.stage;
          mbarrier_wait(free + ring.stage, ring.parity ^ 1);
          mbarrier_expect(barrier, 2 * C::kPart);
          if constexpr (W::kGradient) {
            load_part<W::kLeft, C::kRows>(left, a_map, barrier, t.from_row, t.row + at, 0);
            load_part<W::kRight, C::kCols>(right, b_map, barrier, t.from_col, t.row + at, 0);
          } else {
            const bool along = W::kRight == Along::columns;
            load_part<W::kLeft, C::kRows>(left, a_map, barrier, at, t.row + t.from_row, 0);
            load_part<W::kRight, C::kCols>(right, b_map, barrier, along ? at : t.from_col,
                                           along ? t.from_col : at, t.matrix);
          }
        }
      }
    }
  } else {
    more_registers<C::kMany>();
    const int group = warp_index() / 4 - 1, lane = threadIdx.x % kWarp;
    O* const mine = reinterpret_cast<O*>(writing + (warp_index() - 4) * C::kWriteBytes);
    float acc[C::kHalves][C::kHalf / 2];
    for (int i = static_cast<int>(blockIdx.x); i < table.tiles; i += static_cast<int>(gridDim.x)) {
      const GroupTile t = tile_at(i);
      const int summed = uniform(summed_of(t));
      const int rows = uniform((W::kGradient ? n : t.rows) - t.from_row - 64 * group);
#pragma unroll
      for (int h = 0; h < C::kHalves; ++h)
#pragma unroll
        for (int j = 0; j < C::kHalf / 2; ++j) acc[h][j] = 0;
      int before = 0;  // stage of the previous chunk
      for (int at = 0; at < summed; at += kPanel, ring.next()) {
        T *const left = parts + ring.stage * C::kPart, *const right = left + C::kLeft;
        mbarrier_wait(there + ring.stage, ring.parity);
        if constexpr (W::kGradient) {
          if (summed - at < kPanel) {
            clear_rows<C>(left, summed - at);
            show_to_products();
            named_sync(1, C::kGroups * kWarpgroup);
          }
        }
        if (rows > 0) {  // otherwise this warpgroup's part of the tile is empty
#pragma unroll
          for (int h = 0; h < C::kHalves; ++h) in_flight(acc[h]);
          wgmma_fence();
#pragma unroll
          for (int d = 0; d < kPanel; d += 16)
#pragma unroll
            for (int h = 0; h < C::kHalves; ++h)
              wgmma<T, C::kHalf, W::kLeft, W::kRight>(
                  acc[h], operand<W::kLeft, C::kRows>(left, 64 * group, d),
                  operand<W::kRight, C::kCols>(right, h * C::kHalf, d), true);
          wgmma_commit();
          wgmma_wait<1>();  // waits for the previous chunk's wgmmas
        }
        if (at > 0 && lane == 0) mbarrier_arrive(free + before);
        before = ring.stage;
      }
      wgmma_wait<0>();
#pragma unroll
      for (int h = 0; h < C::kHalves; ++h) in_flight(acc[h]);
      if (summed > 0 && lane == 0) mbarrier_arrive(free + before);

      // A warp's 16 rows, several columns at a time.
      constexpr int kChunk = 16 / static_cast<int>(sizeof(O)), kSome = C::kWriteBytes / 16 / sizeof(O);
      const int first_row = warp_index() % 4 * 16;
      const int64_t to_row = (W::kGradient ? t.matrix * n : t.row) + t.from_row + 64 * group + first_row;
#pragma unroll
      for (int c = 0; c < C::kCols; c += kSome) {
#pragma unroll
        for (int j = 0; j < kSome / 8; ++j)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = 8 * half + lane / 4, col = 8 * j + lane % 4 * 2;
            const float* const two = acc[c / C::kHalf] + c % C::kHalf / 2 + 4 * j + 2 * half;
            put_pair(mine + result_place<O, kSome>(row, col / kChunk) + col % kChunk, two[0], two[1]);
          }
        __syncwarp();
        write_result<16, kSome, kWarp>(out + to_row * cols + t.from_col + c, cols, mine, lane,
                                       rows - first_row, cols - t.from_col - c, accumulate);
        __syncwarp();
      }
    }
  }
#endif
}

/// Tensor map of an operand with the groups' rows, or with their matrices.
TensorMap map_of(const Tensor& t, Along along, int wide) {
  const int64_t matrices = t.shape.rank == 2 ? 1 : t.shape[0], cols = t.cols(),
                rows = t.elements() / matrices / cols;
  return make_tensor_map(t.data, {{cols, rows, matrices, 1},
                                  {2 * cols, 2 * cols * rows, 2 * cols * rows * matrices},
                                  along == Along::columns ? wide : kPanel});
}

template <class C, GroupedProduct kKind, class T, class O>
void run(Stream& s, const GroupedOperands& o, const std::vector<GroupTable>& tables) {
  using W = Way<kKind>;
  for (const GroupTable& t : tables)
    launch(s, dim3(static_cast<unsigned>(std::min<int64_t>(t.tiles, multiprocessors()))), C::kThreads,
           C::kShared, grouped_gemm_wgmma<C, kKind, T, O>, map_of(o.a, W::kLeft, C::kRows),
           map_of(o.b, W::kRight, C::kCols), static_cast<O*>(o.out.data), static_cast<int>(o.n),
           static_cast<int>(o.k), o.accumulate, t);
}

template <GroupedProduct kKind, class T, class O>
void run(Stream& s, const GroupedOperands& o, const GroupRows& rows) {
  const std::vector<GroupTable> wide = group_tables(o, rows, HopperCut<256>::kRows, 256),
                                narrow = group_tables(o, rows, HopperCut<128>::kRows, 128);
  // Rounds of blocks on the card. A round of narrow tiles takes 0.54 of the time of a round of wide ones.
  const auto rounds = [](const std::vector<GroupTable>& tables) {
    int64_t n = 0;
    for (const GroupTable& t : tables) n += (t.tiles + multiprocessors() - 1) / multiprocessors();
    return n;
  };
  54 * rounds(narrow) < 100 * rounds(wide) ? run<HopperCut<128>, kKind, T, O>(s, o, narrow)
                                           : run<HopperCut<256>, kKind, T, O>(s, o, wide);
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void grouped_gemm_wgmma_cuda(Stream& s, const GroupedOperands& o, const GroupRows& rows) {
  with_gemm_type(o.a.dtype, [&]<class T>() {
    switch (o.kind) {
      case GroupedProduct::forward:
        return run<GroupedProduct::forward, T, T>(s, o, rows);
      case GroupedProduct::input_gradient:
        return run<GroupedProduct::input_gradient, T, T>(s, o, rows);
      case GroupedProduct::weight_gradient:
        return run<GroupedProduct::weight_gradient, T, float>(s, o, rows);
    }
  });
}

std::string compare_grouped_gemms(Stream& s, DType t) {
  // Full and partial tiles and chunks, and a group without rows.
  const GroupRows rows{70, 0, 133};
  constexpr int64_t kAll = 203, kGroups = 3, kN = 136, kK = 72;
  constexpr int64_t kBuffer = int64_t{1} << 18;
  char* const memory = static_cast<char*>(scratch(s, 6 * kBuffer));
  const auto tensor = [&](int i, DType type, Shape shape) {
    Tensor at;
    at.data = memory + i * kBuffer, at.dtype = type, at.shape = shape, at.device = DeviceKind::cuda;
    LT_CHECK(at.bytes() <= kBuffer, "expected at most {} bytes in a buffer of the comparison, got {}",
             kBuffer, at.bytes());
    return at;
  };
  const Tensor x = tensor(0, t, {kAll, kK}), w = tensor(1, t, {kGroups, kN, kK}),
               dy = tensor(2, t, {kAll, kN});
  std::vector<uint16_t> bits(static_cast<size_t>(kBuffer / 2));
  for (const Tensor& to : {x, w, dy}) {
    uint32_t seed = static_cast<uint32_t>(to.elements());
    for (uint16_t& b : bits) {
      seed = seed * 1664525u + 1013904223u;
      const float v = static_cast<float>(seed >> 8) * (2.0f / (1 << 24)) - 1.0f;
      b = t == DType::bf16 ? bf16(v).bits : f16(v).bits;
    }
    s.copy(to.data, bits.data(), to.bytes());
    s.synchronize();
  }
  const auto values = [&](const Tensor& from) {
    std::vector<char> raw(static_cast<size_t>(from.bytes()));
    s.copy(raw.data(), from.data, from.bytes());
    s.synchronize();
    std::vector<float> v(static_cast<size_t>(from.elements()));
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = from.dtype == DType::f32    ? reinterpret_cast<const float*>(raw.data())[i]
             : from.dtype == DType::bf16 ? get(reinterpret_cast<const bf16*>(raw.data()), i)
                                         : get(reinterpret_cast<const f16*>(raw.data()), i);
    return v;
  };
  const auto difference = [&](const char* what, GroupedOperands o) {
    std::vector<float> found[2];
    for (const bool hopper : {false, true}) {
      o.out.data = memory + (hopper ? 4 : 3) * kBuffer;
      hopper ? grouped_gemm_wgmma_cuda(s, o, rows) : grouped_gemm_mma_cuda(s, o, rows);
      found[hopper] = values(o.out);
    }
    float most = 0, largest = 0;
    for (size_t i = 0; i < found[0].size(); ++i) {
      const float d = std::fabs(found[0][i] - found[1][i]);
      most = std::max(most, d < INFINITY ? d : INFINITY);
      largest = std::max(largest, std::fabs(found[0][i]));
    }
    // Sums in a different order, rounded to the type.
    const float bound = o.out.dtype == DType::f32 ? 1e-5f : t == DType::bf16 ? 1.0f / 256 : 1.0f / 2048;
    return most <= bound * largest && largest > 0
               ? std::string()
               : fmt::format("{} differs by {} where the largest is {}", what, most, largest);
  };
  std::string told =
      difference("x w^T", {GroupedProduct::forward, tensor(3, t, {kAll, kN}), x, w, kN, kK, false});
  if (told.empty())
    told =
        difference("dy w", {GroupedProduct::input_gradient, tensor(3, t, {kAll, kK}), dy, w, kN, kK, false});
  if (told.empty())
    told = difference("dy^T x", {GroupedProduct::weight_gradient, tensor(3, DType::f32, {kGroups, kN, kK}),
                                 dy, x, kN, kK, false});
  return told;
}

std::string grouped_wgmma_unusable(Stream& s, DType t, bool* news) {
  const auto compare = [t](Stream& stream) { return compare_grouped_gemms(stream, t); };
  std::string why =
      why_unusable(s, {{"experts", std::string(dtype_name(t))}, "the mma kernels", compare}, news);
  if (!why.empty() && grouped_gemm_is_forced())
    fail(ExitCode::usage,
         "LTRAIN_GROUPED_GEMM=wgmma: these kernels are not used, because {}; LTRAIN_GROUPED_GEMM=mma works",
         why);
  return why;
}

void grouped_gemm_cuda(Stream& s, const GroupedOperands& o, const GroupRows& rows, GroupedGemm kernel) {
  LT_CHECK(kernel != GroupedGemm::each, "grouped GEMM: expected the kernel mma or wgmma, got each");
  if (kernel == GroupedGemm::mma) return grouped_gemm_mma_cuda(s, o, rows);
  bool news = false;
  const std::string why = grouped_wgmma_unusable(s, o.a.dtype, &news);
  if (why.empty()) return grouped_gemm_wgmma_cuda(s, o, rows);
  if (news)  // otherwise the start of a run has printed it
    fmt::print(stderr, "ltrain: products of experts in {}: the wgmma kernels are not used, because {}\n",
               dtype_name(o.a.dtype), why);
  grouped_gemm_mma_cuda(s, o, rows);
}

}  // namespace ltrain
