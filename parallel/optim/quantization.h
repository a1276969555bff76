// Quantization-aware training: matrices whose weights in a step are codes of 4 or 8 bits times scales.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/optimizer/weight_codes.h"
#include "kernels/tensor/dtype.h"

namespace ltrain {

struct ParameterSpec;

/// Matrices of linear layers with a name that `match` has and `ignore` has not have quantized weights in a
/// step. They are made from master weights after each update; gradients go to the master weights unchanged
/// (straight-through).
struct QuantizationSettings {
  WeightCodes weights = WeightCodes::none;
  int64_t group_size = 128;                ///< neighbours along the input dim with one scale; 0: a row
  std::vector<std::string> match = {"*"};  ///< patterns as in OptimizerGroup
  std::vector<std::string> ignore;
  std::optional<DType> type;  ///< dtype of scales and products; none: that of the step's weights
  bool on() const { return weights != WeightCodes::none; }
};

bool is_quantized(const QuantizationSettings& settings, const ParameterSpec& spec);
/// Elements with one scale; 0: `spec` is not quantized. Throws Error (usage) unless a rank's part has full
/// groups.
int64_t quantization_group(const QuantizationSettings& settings, const ParameterSpec& spec);

}  // namespace ltrain
