#include <cstring>

#include "kernels/elementwise/embedding.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void embedding_forward_cpu(DType t, void* y, const int32_t* tokens, const void* table, const void* positions,
                           int64_t rows, int64_t cols, RowMapArgs map, VocabPart part) {
  dispatch_float(t, [&]<class T>() {
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t id = tokens[row] - part.first;
        const bool here = id >= 0 && id < part.rows;
        const T* from = static_cast<const T*>(table) + (here ? id : 0) * cols;
        T* out = static_cast<T*>(y) + row * cols;
        if (positions) {
          const T* p = static_cast<const T*>(positions) + map.embedded(row) * cols;
          for (int64_t c = 0; c < cols; ++c) put(out, c, (here ? get(from, c) : 0) + get(p, c));
        } else if (here) {
          std::memcpy(out, from, cols * sizeof(T));
        } else {
          std::memset(static_cast<void*>(out), 0, cols * sizeof(T));
        }
      }
    });
  });
}

void position_forward_cpu(DType t, void* y, const void* positions, int64_t rows, int64_t cols,
                          RowMapArgs map) {
  dispatch_float(t, [&]<class T>() {
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* out = static_cast<T*>(y) + row * cols;
        const T* p = static_cast<const T*>(positions) + map.embedded(row) * cols;
        for (int64_t c = 0; c < cols; ++c) put(out, c, get(out, c) + get(p, c));
      }
    });
  });
}

// Parallel over columns, so that each sum runs over rows in one order.
void embedding_backward_cpu(DType t, void* dtable, const void* dy, const int32_t* tokens, int64_t rows,
                            int64_t cols, int64_t table_rows, VocabPart part, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    A* out = static_cast<A*>(dtable);
    if (!accumulate)
      parallel_for(table_rows, 256, [&](int64_t begin, int64_t end) {
        std::memset(out + begin * cols, 0, (end - begin) * cols * sizeof(A));
      });
    parallel_for(cols, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t id = tokens[row] - part.first;
        if (id < 0 || id >= part.rows) continue;
        const T* from = static_cast<const T*>(dy) + row * cols;
        A* to = out + id * cols;
        for (int64_t c = begin; c < end; ++c) to[c] += get(from, c);
      }
    });
  });
}

void position_backward_cpu(DType t, void* dpositions, const void* dy, int64_t rows, int64_t cols,
                           RowMapArgs map, int64_t positions, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    A* out = static_cast<A*>(dpositions);
    if (!accumulate)
      parallel_for(positions, 256, [&](int64_t begin, int64_t end) {
        std::memset(out + begin * cols, 0, (end - begin) * cols * sizeof(A));
      });
    parallel_for(cols, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row) {
        const T* from = static_cast<const T*>(dy) + row * cols;
        A* to = out + map.embedded(row) * cols;
        for (int64_t c = begin; c < end; ++c) to[c] += get(from, c);
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
