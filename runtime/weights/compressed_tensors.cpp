#include "runtime/weights/compressed_tensors.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json/json.h"
#include "kernels/optimizer/fake_quantize.h"

namespace ltrain {
namespace {

using nlohmann::ordered_json;

int64_t bits_of(WeightCodes codes) { return codes == WeightCodes::int4 ? 4 : 8; }

/// Bytes of the codes of a row. Integers fill full words of 32 bits.
int64_t row_bytes(WeightCodes codes, int64_t cols) {
  if (codes == WeightCodes::fp8) return cols;
  return (cols * bits_of(codes) + 31) / 32 * 4;
}

int64_t group_of(const QuantizationSettings& q, const Shape& matrix) {
  return q.group_size == 0 ? matrix[1] : q.group_size;
}

/// Writes the codes of a row to `out` (zeros before), and its scales to `scales`. Returns false if a weight
/// is not finite.
template <class T, WeightCodes C>
bool quantize_row(uint8_t* out, T* scales, const float* w, int64_t cols, int64_t group) {
  bool finite = true;
  for (int64_t g = 0; g * group < cols; ++g) {
    float most = 0;
    for (int64_t i = g * group; i < (g + 1) * group; ++i) {
      most = std::max(most, std::abs(w[i]));
      finite = finite && std::isfinite(w[i]);
    }
    const float scale = quantized::scale_of<T>(most, C);
    put(scales, g, scale);
    for (int64_t i = g * group; finite && i < (g + 1) * group; ++i) {
      const float code = quantized::code_of<C>(w[i], scale);
      if constexpr (C == WeightCodes::fp8)
        out[i] = fp8::to_e4m3(code);
      else if constexpr (C == WeightCodes::int8)
        out[i] = static_cast<uint8_t>(static_cast<int>(code) + 128);
      else
        out[i / 2] |= static_cast<uint8_t>((static_cast<int>(code) + 8) << (i % 2 * 4));
    }
  }
  return finite;
}

}  // namespace

std::vector<CompressedItem> compressed_items(const QuantizationSettings& q, const std::string& name,
                                             const Shape& matrix) {
  const int64_t rows = matrix[0], cols = matrix[1], groups = cols / group_of(q, matrix);
  const bool integers = q.weights != WeightCodes::fp8;
  std::vector<CompressedItem> items;
  const auto add = [&](const char* suffix, DType dtype, std::vector<int64_t> shape, CompressedPart part) {
    items.push_back(
        {{.name = name + suffix, .dtype = dtype, .shape = std::move(shape), .data = nullptr}, part});
  };
  if (integers)
    add("_packed", DType::i32, {rows, row_bytes(q.weights, cols) / 4}, CompressedPart::codes);
  else
    add("", DType::f8e4m3, {rows, cols}, CompressedPart::codes);
  add("_scale", *q.type, {rows, groups}, CompressedPart::scales);
  if (integers) add("_shape", DType::i64, {2}, CompressedPart::shape);
  return items;
}

void stream_compressed(const ReadSlice& read, const std::string& source, const Shape& matrix,
                       const QuantizationSettings& q, CompressedPart part, const WriteBytes& write) {
  const int64_t rows = matrix[0], cols = matrix[1], group = group_of(q, matrix), groups = cols / group;
  if (part == CompressedPart::shape) {
    const int64_t shape[] = {rows, cols};
    return write(shape, sizeof shape);
  }
  const int64_t bytes = row_bytes(q.weights, cols);
  const int64_t most = std::max<int64_t>(1, (1 << 20) / cols);  // rows at once
  std::vector<float> w;
  std::vector<uint8_t> codes;
  for (int64_t at = 0; at < rows; at += most) {
    const int64_t n = std::min(most, rows - at);
    w.resize(static_cast<size_t>(n * cols));
    codes.assign(static_cast<size_t>(n * bytes), 0);
    read(source, DType::f32, Slice::box(matrix, {at, 0}, {n, cols}), w.data());
    dispatch_quantized(DType::f32, *q.type, [&]<class X, class W, class T>() {
      if constexpr (std::is_same_v<W, float>) {
        std::vector<T> scales(static_cast<size_t>(n * groups));
        dispatch_codes(q.weights, [&]<WeightCodes C>() {
          for (int64_t r = 0; r < n; ++r)
            if (!quantize_row<T, C>(codes.data() + r * bytes, scales.data() + r * groups, w.data() + r * cols,
                                    cols, group))
              fail(ExitCode::storage, "{}: row {} has weights that are not finite, and is not quantized",
                   source, at + r);
        });
        if (part == CompressedPart::scales)
          write(scales.data(), static_cast<int64_t>(scales.size() * sizeof(T)));
      }
    });
    if (part == CompressedPart::codes) write(codes.data(), static_cast<int64_t>(codes.size()));
  }
}

ordered_json compressed_config(const QuantizationSettings& q, const std::vector<std::string>& ignore) {
  const bool fp8 = q.weights == WeightCodes::fp8;
  const char* format = fp8 ? "float-quantized" : "pack-quantized";
  const ordered_json weights{{"num_bits", bits_of(q.weights)},
                             {"type", fp8 ? "float" : "int"},
                             {"symmetric", true},
                             {"strategy", q.group_size == 0 ? "channel" : "group"},
                             {"group_size", q.group_size == 0 ? ordered_json() : ordered_json(q.group_size)},
                             {"dynamic", false},
                             {"observer", "minmax"}};
  const ordered_json group{{"targets", {"Linear"}},
                           {"weights", weights},
                           {"input_activations", nullptr},
                           {"output_activations", nullptr},
                           {"format", format}};
  return {
      {"quant_method", "compressed-tensors"}, {"format", format}, {"quantization_status", "compressed"},
      {"kv_cache_scheme", nullptr},           {"ignore", ignore}, {"config_groups", {{"group_0", group}}}};
}

}  // namespace ltrain
