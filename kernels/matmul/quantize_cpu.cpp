#include "kernels/matmul/quantize.h"

#include <algorithm>

#include "kernels/matmul/quantize_row_cpu.h"
#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {
namespace {

constexpr int64_t kTile = 64;  // side of a block that is transposed at once, in elements

}  // namespace

void max_abs_cpu(DType t, float* amax, const void* x, int64_t n) {
  dispatch_float(t, [&]<class T>() {
    parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
      raise(amax, largest(static_cast<const T*>(x) + begin, end - begin));
    });
  });
}

void quantize_cpu(DType to, DType from, void* codes, const void* x, int64_t rows, int64_t cols, bool turn,
                  const float* step, float* amax) {
  const float inverse = 1.0f / *step;
  dispatch_fp8(to, [&]<class E>() {
    dispatch_float(from, [&]<class T>() {
      uint8_t* out = static_cast<uint8_t*>(codes);
      const T* in = static_cast<const T*>(x);
      if (!turn) {
        parallel_for(rows * cols, 16384, [&](int64_t begin, int64_t end) {
          encode<E>(out + begin, in + begin, end - begin, inverse);
          if (amax) raise(amax, largest(in + begin, end - begin));
        });
        return;
      }
      parallel_for((cols + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
        alignas(64) uint8_t tile[kTile * kTile];
        uint32_t most = 0;
        for (int64_t c0 = begin * kTile; c0 < std::min(cols, end * kTile); c0 += kTile) {
          const int64_t width = std::min(kTile, cols - c0);
          for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
            const int64_t height = std::min(kTile, rows - r0);
            for (int64_t r = 0; r < height; ++r) {
              const T* row = in + (r0 + r) * cols + c0;
              encode<E>(tile + r * kTile, row, width, inverse);
              if (amax) most = std::max(most, largest(row, width));
            }
            for (int64_t c = 0; c < width; ++c) {
              uint8_t* line = out + (c0 + c) * rows + r0;
              for (int64_t r = 0; r < height; ++r) line[r] = tile[r * kTile + c];
            }
          }
        }
        if (amax) raise(amax, most);
      });
    });
  });
}

void turn_codes_cpu(void* transposed, const void* codes, int64_t rows, int64_t cols) {
  uint8_t* out = static_cast<uint8_t*>(transposed);
  const uint8_t* in = static_cast<const uint8_t*>(codes);
  parallel_for((cols + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c0 = begin * kTile; c0 < std::min(cols, end * kTile); c0 += kTile)
      for (int64_t r0 = 0; r0 < rows; r0 += kTile)
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) out[c * rows + r] = in[r * cols + c];
  });
}

void quantize_blocks_cpu(DType to, DType from, void* codes, float* steps, const void* x, int64_t rows,
                         int64_t cols, bool turn, int64_t block_rows) {
  const int top = fp8_top_exponent(to);
  const int64_t down = (rows + kFp8Block - 1) / kFp8Block, across = (cols + kFp8Block - 1) / kFp8Block;
  const int64_t code_cols = turn ? rows : cols, step_cols = turn ? down : across;
  dispatch_fp8(to, [&]<class E>() {
    dispatch_float(from, [&]<class T>() {
      uint8_t* out = static_cast<uint8_t*>(codes);
      parallel_for(down * across, 1, [&](int64_t begin, int64_t end) {
        float* tile = scratch<float>(0, kFp8Block * kFp8Block);  // layout of the codes
        for (int64_t t = begin; t < end; ++t) {
          const int64_t r0 = t / across * kFp8Block, c0 = t % across * kFp8Block;
          const int64_t height = std::min(kFp8Block, rows - r0), width = std::min(kFp8Block, cols - c0);
          for (int64_t r = 0; r < height; ++r) {
            const T* row = static_cast<const T*>(x) + (r0 + r) * cols + c0;
            if (turn) {
              for (int64_t c = 0; c < width; ++c) tile[c * kFp8Block + r] = static_cast<float>(get(row, c));
            } else {
              for (int64_t c = 0; c < width; ++c) tile[r * kFp8Block + c] = static_cast<float>(get(row, c));
            }
          }
          const int64_t lines = turn ? width : height, length = turn ? height : width;
          const int64_t line0 = turn ? c0 : r0, at = turn ? r0 : c0;
          uint32_t all = 0;
          if (block_rows > 1)
            for (int64_t l = 0; l < lines; ++l) all = std::max(all, largest(tile + l * kFp8Block, length));
          for (int64_t l = 0; l < lines; ++l) {
            const float* line = tile + l * kFp8Block;
            const float most = fp8::float_of(block_rows > 1 ? all : largest(line, length));
            const float step = fp8::step_of(most, top, 0);
            steps[(line0 + l) / block_rows * step_cols + at / kFp8Block] = step;
            encode<E>(out + (line0 + l) * code_cols + at, line, length, 1.0f / step);
          }
        }
      });
    });
  });
}

void update_fp8_steps_cpu(float* steps, float* amax, float* history, int64_t n, int64_t length,
                          Fp8StepArgs args) {
  for (int64_t i = 0; i < n; ++i) {
    float counts = amax[i];
    if (length > 0) {
      float* own = history + i * length;
      if (args.record) {
        std::copy_backward(own, own + length - 1, own + length);
        own[0] = counts;
        amax[i] = 0;
      }
      counts = own[0];
      if (!args.most_recent) {
        // Non-finite values say nothing about later numbers.
        float most = -INFINITY;
        for (int64_t k = 0; k < length; ++k)
          if (fp8::finite(own[k])) most = std::max(most, own[k]);
        if (fp8::finite(most)) counts = most;
      }
    }
    steps[i * kFp8StepStride] = fp8::step_of(counts, args.top[i % args.period], args.margin);
  }
}

}  // namespace ltrain::LT_ISA
