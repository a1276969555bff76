#include <cstring>

#include "kernels/core/parallel_for.h"
#include "kernels/ops/embedding.h"

namespace ltrain::LT_ISA {

void embedding_forward_cpu(DType t, void* y, const int32_t* tokens, const void* table, const void* positions,
                           int64_t rows, int64_t cols, int64_t vocab, int64_t seq) {
  dispatch_float(t, [&]<class T>() {
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = static_cast<const T*>(table) + tokens[row] * cols;
        T* out = static_cast<T*>(y) + row * cols;
        if (positions) {
          const T* p = static_cast<const T*>(positions) + row % seq * cols;
          for (int64_t c = 0; c < cols; ++c) put(out, c, get(from, c) + get(p, c));
        } else {
          std::memcpy(out, from, cols * sizeof(T));
        }
      }
    });
  });
}

// Parallel over columns, so that each sum runs over rows in one order.
void embedding_backward_cpu(DType t, void* dtable, const void* dy, const int32_t* tokens, int64_t rows,
                            int64_t cols, int64_t vocab, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    A* out = static_cast<A*>(dtable);
    if (!accumulate)
      parallel_for(vocab, 256, [&](int64_t begin, int64_t end) {
        std::memset(out + begin * cols, 0, (end - begin) * cols * sizeof(A));
      });
    parallel_for(cols, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row) {
        const T* from = static_cast<const T*>(dy) + row * cols;
        A* to = out + tokens[row] * cols;
        for (int64_t c = begin; c < end; ++c) to[c] += get(from, c);
      }
    });
  });
}

void position_backward_cpu(DType t, void* dpositions, const void* dy, int64_t rows, int64_t cols, int64_t seq,
                           int64_t positions, bool accumulate) {
  dispatch_float(t, [&]<class T>() {
    using A = compute_t<T>;
    parallel_for(positions, 8, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        A* to = static_cast<A*>(dpositions) + p * cols;
        if (!accumulate) std::memset(to, 0, cols * sizeof(A));
        if (p >= seq) continue;
        for (int64_t row = p; row < rows; row += seq) {
          const T* from = static_cast<const T*>(dy) + row * cols;
          for (int64_t c = 0; c < cols; ++c) to[c] += get(from, c);
        }
      }
    });
  });
}

}  // namespace ltrain::LT_ISA
