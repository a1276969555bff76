#include "kernels/cuda/sort_rows_cuda.h"
#include "kernels/elementwise/embedding.h"

namespace ltrain {
namespace cuda {
namespace {

/// RowMapArgs::embedded in 32 bits; check_map() has checked that they are enough.
inline __device__ int64_t embedded(const RowMapArgs& map, int64_t row) {
  const uint32_t at = static_cast<uint32_t>(row + map.first_row);
  if (map.ids) return map.ids[at];
  const uint32_t column = at % static_cast<uint32_t>(map.seq);
  return map.positions ? map.positions[column] : column;
}
void check_map(const RowMapArgs& map, int64_t rows) {
  LT_CHECK((rows + map.first_row) >> 31 == 0 && map.seq >> 31 == 0,
           "expected row indices and sequence lengths below 2^31, got {} rows from {} on and sequences of {}",
           rows, map.first_row, map.seq);
}

/// A block handles a run of packs of row blockIdx.x (RowGrid).
template <class T, int N, bool kPositions>
__global__ void lookup(T* y, const int32_t* tokens, const T* table, const T* positions, int64_t row_packs,
                       RowMapArgs map, VocabPart part) {
  using A = compute_t<T>;
  const int64_t row = blockIdx.x, col = row_pack() * N, cols = row_packs * N;
  if (col >= cols) return;
  const int64_t id = load_one(tokens, row) - part.first;
  const bool own = id >= 0 && id < part.rows;
  if constexpr (kPositions) {
    A v[N] = {}, p[N];
    if (own) load_values<N>(v, table, id * cols + col);
    load_values<N>(p, positions, embedded(map, row) * cols + col);
    for (int j = 0; j < N; ++j) v[j] += p[j];
    store_values<N>(y, row * cols + col, v);
  } else {
    Pack<T, N> v{};
    if (own) v = load<T, N>(table, id * cols + col);
    store(y, row * cols + col, v);
  }
}

template <class T, int N>
__global__ void add_positions(T* y, const T* positions, int64_t row_packs, RowMapArgs map) {
  using A = compute_t<T>;
  const int64_t row = blockIdx.x, col = row_pack() * N, cols = row_packs * N;
  if (col >= cols) return;
  A v[N], p[N];
  load_values<N>(v, y, row * cols + col);
  load_values<N>(p, positions, embedded(map, row) * cols + col);
  for (int j = 0; j < N; ++j) v[j] += p[j];
  store_values<N>(y, row * cols + col, v);
}

struct TokenRow {
  const int32_t* tokens;
  VocabPart part;
  /// Rows of other parts are last.
  __device__ uint32_t operator()(int64_t row) const {
    const int64_t id = load_one(tokens, row) - part.first;
    return static_cast<uint32_t>(id >= 0 && id < part.rows ? id : part.rows);
  }
};
struct PositionRow {
  RowMapArgs map;
  __device__ uint32_t operator()(int64_t row) const { return static_cast<uint32_t>(embedded(map, row)); }
};

/// Rows of dy that a thread loads before it adds the first of them.
constexpr int kAhead = 4;

/// table[key] += rows of dy with that key, in their order. Grid x: positions in the order of keys; only the
/// first position of each key works. Grid y: runs of packs of a row. `fresh`: the table is zero, and is not
/// read.
template <class T, int N>
__global__ void add_runs(compute_t<T>* table, const T* dy, SortedRows sorted, int64_t n, int64_t row_packs,
                         uint32_t own_rows, bool fresh) {
  using A = compute_t<T>;
  const int64_t col = row_pack() * N, cols = row_packs * N;
  int64_t i = blockIdx.x;
  const uint32_t mine = load_one(sorted.keys, i);
  if (mine >= own_rows || col >= cols || (i > 0 && load_one(sorted.keys, i - 1) == mine)) return;
  A sum[N] = {};
  if (!fresh) load_values<N>(sum, table, mine * cols + col);
  for (bool more = true; more; i += kAhead) {
    bool in[kAhead];
    Pack<T, N> d[kAhead] = {};
    for (int k = 0; k < kAhead; ++k) {
      in[k] = i + k < n && load_one(sorted.keys, i + k) == mine;
      if (in[k]) d[k] = load<T, N>(dy, int64_t{load_one(sorted.rows, i + k)} * cols + col);
    }
    for (int k = 0; k < kAhead; ++k)
      if (in[k]) {
        A v[N];
        unpack(v, d[k]);
        for (int j = 0; j < N; ++j) sum[j] += v[j];
      }
    more = in[kAhead - 1];
  }
  store_values<N>(table, mine * cols + col, sum);
}

/// table (+)= rows of dy by key(row), which is below own_rows, or equal to it for rows that are not added.
template <class T, class Key>
void add_by_key(Stream& s, compute_t<T>* table, const T* dy, Key key, int64_t rows, int64_t cols,
                int64_t table_rows, int64_t own_rows, bool accumulate) {
  LT_CHECK(own_rows < int64_t{1} << 31, "expected a table of fewer than 2^31 rows, got {}", own_rows);
  if (!accumulate) fill_bytes(s, table, table_rows * cols * static_cast<int64_t>(sizeof(compute_t<T>)));
  const uint32_t own = static_cast<uint32_t>(own_rows);
  for (int64_t first = 0; first < rows; first += kMostSortedRows) {
    const int64_t n = std::min(kMostSortedRows, rows - first);
    const SortedRows sorted = sort_rows(s, key, own + 1, first, n);
    with_pack<T>(cols, {table, dy}, [&]<int N>() {
      const RowGrid g(n, cols / N);
      launch(s, g.grid, g.threads, 0, add_runs<T, N>, table, dy + first * cols, sorted, n, cols / N, own,
             !accumulate && first == 0);
    });
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void embedding_forward_cuda(Stream& s, DType t, void* y, const int32_t* tokens, const void* table,
                            const void* positions, int64_t rows, int64_t cols, RowMapArgs map,
                            VocabPart part) {
  check_map(map, rows);
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, table, positions}, [&]<int N>() {
      const RowGrid g(rows, cols / N);
      launch(s, g.grid, g.threads, 0, positions ? cuda::lookup<T, N, true> : cuda::lookup<T, N, false>,
             static_cast<T*>(y), tokens, static_cast<const T*>(table), static_cast<const T*>(positions),
             cols / N, map, part);
    });
  });
}

void position_forward_cuda(Stream& s, DType t, void* y, const void* positions, int64_t rows, int64_t cols,
                           RowMapArgs map) {
  check_map(map, rows);
  dispatch_float(t, [&]<class T>() {
    with_pack<T>(cols, {y, positions}, [&]<int N>() {
      const RowGrid g(rows, cols / N);
      launch(s, g.grid, g.threads, 0, cuda::add_positions<T, N>, static_cast<T*>(y),
             static_cast<const T*>(positions), cols / N, map);
    });
  });
}

void embedding_backward_cuda(Stream& s, DType t, void* dtable, const void* dy, const int32_t* tokens,
                             int64_t rows, int64_t cols, int64_t table_rows, VocabPart part,
                             bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    add_by_key(s, static_cast<compute_t<T>*>(dtable), static_cast<const T*>(dy), TokenRow{tokens, part}, rows,
               cols, table_rows, part.rows, accumulate);
  });
}

void position_backward_cuda(Stream& s, DType t, void* dpositions, const void* dy, int64_t rows, int64_t cols,
                            RowMapArgs map, int64_t positions, bool accumulate) {
  check_map(map, rows);
  dispatch_float(t, [&]<class T>() {
    add_by_key(s, static_cast<compute_t<T>*>(dpositions), static_cast<const T*>(dy), PositionRow{map}, rows,
               cols, positions, positions, accumulate);
  });
}

}  // namespace ltrain
