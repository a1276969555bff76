#include "runtime/weights/merged_reader.h"

#include "runtime/checkpoint/convert_elements.h"

namespace ltrain {

bool MergedReader::load_factors(const std::string& weight) {
  const std::string a = lora_a_name(weight), b = lora_b_name(weight);
  if (!lora_.on() || !reader_.has(a)) return false;
  if (weight_ == weight) return true;
  const auto load = [&](const std::string& name, std::vector<float>& to) {
    const Shape& shape = reader_.tensors().at(name).shape;
    to.resize(static_cast<size_t>(shape.elements()));
    reader_.read(name, DType::f32, Slice::whole(shape), to.data());
  };
  load(a, a_);
  load(b, b_);
  weight_ = weight;
  return true;
}

void MergedReader::read(const std::string& name, DType dtype, const Slice& slice, void* to) {
  if (name.ends_with(".bias") || !load_factors(name)) return reader_.read(name, dtype, slice, to);
  wide_.resize(static_cast<size_t>(slice.elements()));
  reader_.read(name, DType::f32, slice, wide_.data());
  const int64_t columns = slice.global[1], rank = lora_.rank_of(name);
  const float scale = static_cast<float>(lora_.scale_of(name));
  Runs runs(slice);
  for (Run run = runs.next(); run.count > 0; run = runs.next())
    for (int64_t at = 0, n; at < run.count; at += n) {
      const int64_t row = (run.global + at) / columns, column = (run.global + at) % columns;
      n = std::min(run.count - at, columns - column);
      float* out = wide_.data() + run.local + at;
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = scale * b_[static_cast<size_t>(row * rank + k)];
        const float* a = a_.data() + k * columns + column;
        for (int64_t i = 0; i < n; ++i) out[i] += factor * a[i];
      }
    }
  convert_elements(DType::f32, wide_.data(), dtype, to, slice.elements());
}

}  // namespace ltrain
