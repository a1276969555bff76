// Codes of weights in quantization-aware training.
#pragma once
#include <cstdint>

#include "base/enum_names.h"

namespace ltrain {

/// Signed integers of 4 or 8 bits, or FP8's e4m3.
enum class WeightCodes : uint8_t { none, int4, int8, fp8 };
LT_ENUM_NAMES(WeightCodes, {WeightCodes::none, "none"}, {WeightCodes::int4, "int4"},
              {WeightCodes::int8, "int8"}, {WeightCodes::fp8, "fp8"});

}  // namespace ltrain
