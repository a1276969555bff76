// Quantized matrices of a Hugging Face folder, as the package compressed-tensors reads them: `pack-quantized`
// for integers, `float-quantized` for FP8.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "parallel/optim/quantization.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/weights/stream_tensor.h"

namespace ltrain {

/// One of the tensors of a quantized matrix. `shape`: its rows and columns, in i64.
enum class CompressedPart : uint8_t { codes, scales, shape };

struct CompressedItem {
  SafetensorsItem item;
  CompressedPart part;
};

/// Tensors in the place of a matrix (rows, cols) named `name`, "*.weight". Integers: weight_packed (rows,
/// words of a row) i32, weight_scale and weight_shape (2) i64. FP8: weight (rows, cols) and weight_scale.
/// Scales: (rows, groups of a row) in `settings.type`, which must be set.
std::vector<CompressedItem> compressed_items(const QuantizationSettings& settings, const std::string& name,
                                             const Shape& matrix);

/// Writes one of them from the master weights `source`. Integers are packed along a row, low bits first, with
/// half of their range added. Throws Error (storage) if a weight is not finite.
void stream_compressed(const ReadSlice& read, const std::string& source, const Shape& matrix,
                       const QuantizationSettings& settings, CompressedPart part, const WriteBytes& write);

/// quantization_config of a config.json. `ignore`: other linear layers, by module.
nlohmann::ordered_json compressed_config(const QuantizationSettings& settings,
                                         const std::vector<std::string>& ignore);

}  // namespace ltrain
