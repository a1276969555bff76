#include "runtime/weights/merged_reader.h"

#include "runtime/checkpoint/convert_elements.h"
#include "runtime/weights/row_norms.h"

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
  if (lora_.dora) load_magnitudes(weight);
  return true;
}

void MergedReader::load_magnitudes(const std::string& weight) {
  LoraConfig without = lora_;
  without.dora = false;
  MergedReader sum(reader_, without);
  // Stacks of experts have no ".weight", and a matrix for each expert.
  const std::string name = reader_.has(weight) ? weight : std::string(module_of(weight));
  const Shape& shape = reader_.tensors().at(name).shape;
  const int64_t rows = shape.elements() / shape[-1];
  const auto before = row_norms(reads_of(reader_), name, shape, 0, rows),
             after = row_norms(reads_of(sum), name, shape, 0, rows);
  const std::string changes = lora_magnitude_name(weight);
  magnitudes_.resize(before.size());
  reader_.read(changes, DType::f32, Slice::whole(reader_.tensors().at(changes).shape), magnitudes_.data());
  for (size_t i = 0; i < magnitudes_.size(); ++i)
    magnitudes_[i] =
        after[i] > 0 ? static_cast<float>((before[i] + static_cast<double>(magnitudes_[i])) / after[i]) : 0;
}

void MergedReader::read(const std::string& name, DType dtype, const Slice& slice, void* to) {
  // Stacks of experts have no ".weight".
  const std::string weight = name.ends_with(".weight") ? name : name + ".weight";
  if (name.ends_with(".bias") || !load_factors(weight)) return reader_.read(name, dtype, slice, to);
  wide_.resize(static_cast<size_t>(slice.elements()));
  reader_.read(name, DType::f32, slice, wide_.data());
  const Shape& all = slice.global;
  const int64_t columns = all[-1], rows = all[-2], rank = lora_.rank_of(weight);
  const float scale = static_cast<float>(lora_.scale_of(weight));
  Runs runs(slice);
  for (Run run = runs.next(); run.count > 0; run = runs.next())
    for (int64_t at = 0, n; at < run.count; at += n) {
      const int64_t row = (run.global + at) / columns, column = (run.global + at) % columns;
      n = std::min(run.count - at, columns - column);
      float* out = wide_.data() + run.local + at;
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = scale * b_[static_cast<size_t>(row * rank + k)];
        const float* a = a_.data() + (row / rows * rank + k) * columns + column;  // row / rows: the matrix
        for (int64_t i = 0; i < n; ++i) out[i] += factor * a[i];
      }
      if (!lora_.dora) continue;
      for (int64_t i = 0; i < n; ++i) out[i] *= magnitudes_[static_cast<size_t>(row)];
    }
  convert_elements(DType::f32, wide_.data(), dtype, to, slice.elements());
}

}  // namespace ltrain
