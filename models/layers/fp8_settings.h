// Choice of FP8 matmuls, and of their quantization steps.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/enum_names.h"

namespace ltrain {

/// delayed: a step follows from the largest magnitudes of earlier steps (arXiv:2209.05433, Transformer
/// Engine's delayed scaling); tensorwise: from the tensor itself; blockwise: from each block
/// (arXiv:2412.19437, 3.3.2).
enum class Fp8Recipe : uint8_t { delayed, tensorwise, blockwise };
LT_ENUM_NAMES(Fp8Recipe, {Fp8Recipe::delayed, "delayed"}, {Fp8Recipe::tensorwise, "tensorwise"},
              {Fp8Recipe::blockwise, "blockwise"});

struct Fp8Settings {
  Fp8Recipe recipe = Fp8Recipe::delayed;
  bool hybrid = true;                         ///< gradients are e5m2, otherwise e4m3 like the rest
  bool output_layer = false;                  ///< the output layer is quantized too
  int64_t history = 1024;                     ///< delayed: number of remembered steps
  bool most_recent = false;                   ///< delayed: only the last step counts
  int64_t margin = 0;                         ///< delayed, tensorwise: quantization steps are 2^margin larger
  std::vector<std::string> keep;              ///< name patterns of weights whose layers are not quantized
  int64_t first_layers = 0, last_layers = 0;  ///< layers that are not quantized
  bool operator==(const Fp8Settings&) const = default;
};

}  // namespace ltrain
