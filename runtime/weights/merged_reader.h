// Weights with their LoRA adapters added, read slice by slice.
#pragma once
#include <string>
#include <vector>

#include "models/layers/lora.h"
#include "runtime/checkpoint/piece_reader.h"

namespace ltrain {

class MergedReader {
 public:
  /// `reader` must take any float type.
  MergedReader(PieceReader& reader, const LoraConfig& lora) : reader_(reader), lora_(lora) {}
  /// Elements of the slice of W + scale B A, with DoRA of the magnitudes of its rows, summed in fp32 and
  /// rounded once to `dtype`, in order; of a weight without an adapter its own elements.
  void read(const std::string& name, DType dtype, const Slice& slice, void* to);

 private:
  bool load_factors(const std::string& weight);
  /// Fills magnitudes_ from the norms of the rows of W and of W + scale B A.
  void load_magnitudes(const std::string& weight);

  PieceReader& reader_;
  LoraConfig lora_;
  std::string weight_;             // has its factors in memory
  std::vector<float> a_, b_;       // (rank, in) and (out, rank)
  std::vector<float> magnitudes_;  // (out) factors of the rows; empty without DoRA
  std::vector<float> wide_;        // one slice
};

}  // namespace ltrain
