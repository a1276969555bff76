// Which products are of FP8, and how their steps are found.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/enum_names.h"

namespace ltrain {

/// delayed: a step follows from the largest magnitudes of the steps before (arXiv:2209.05433, Transformer
/// Engine's delayed scaling); tensorwise: from that of the tensor itself; blockwise: from that of each block
/// (arXiv:2412.19437, 3.3.2).
enum class Fp8Recipe : uint8_t { delayed, tensorwise, blockwise };
LT_ENUM_NAMES(Fp8Recipe, {Fp8Recipe::delayed, "delayed"}, {Fp8Recipe::tensorwise, "tensorwise"},
              {Fp8Recipe::blockwise, "blockwise"});

struct Fp8Settings {
  Fp8Recipe recipe = Fp8Recipe::delayed;
  bool hybrid = true;                         ///< gradients are e5m2, else e4m3 as the rest
  int64_t history = 1024;                     ///< delayed: steps that are remembered
  bool most_recent = false;                   ///< delayed: the last step alone counts
  int64_t margin = 0;                         ///< delayed, tensorwise: steps are 2^margin larger
  std::vector<std::string> keep;              ///< patterns of weights whose layers are not rounded
  int64_t first_layers = 0, last_layers = 0;  ///< that are not rounded
  bool operator==(const Fp8Settings&) const = default;
};

}  // namespace ltrain
