// Activation recomputation: named tensors of a layer, or full runs of layers from the input of the first
// (arXiv:1604.06174).
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

/// Tensors of a block that its backward reads, in the order in which forward makes them. A block always keeps
/// its input and the statistics of its norms. Tensors of experts have the rows dispatched to the rank's
/// experts, and the outputs for its own tokens: they are kept or offloaded.
enum class BlockTensor : uint8_t {
  attention_norm,
  qkv,
  attention,
  residual,
  mlp_norm,
  permuted_tokens,
  mlp_hidden,
  mlp_activation,
  expert_output
};
inline constexpr int kBlockTensors = 9;
/// True if backward can recompute it without other ranks' tokens.
inline bool can_recompute(BlockTensor t) {
  return t != BlockTensor::permuted_tokens && t != BlockTensor::expert_output;
}
std::string_view block_tensor_name(BlockTensor t);

struct BlockTensorSet {
  uint16_t bits = 0;
  bool has(BlockTensor t) const { return bits >> static_cast<int>(t) & 1; }
  void add(BlockTensor t) { bits = static_cast<uint16_t>(bits | 1 << static_cast<int>(t)); }
  void remove(BlockTensor t) { bits = static_cast<uint16_t>(bits & ~(1 << static_cast<int>(t))); }
  bool operator==(const BlockTensorSet&) const = default;
};
inline BlockTensorSet set_of(std::initializer_list<BlockTensor> tensors) {
  BlockTensorSet s;
  for (BlockTensor t : tensors) s.add(t);
  return s;
}

/// True if backward can read it from codes of 8 bits: inputs of linear layers and of norms. Attention reads
/// its tensors beside statistics of their exact values.
inline bool can_compress(BlockTensor t) {
  return can_recompute(t) && t != BlockTensor::qkv && t != BlockTensor::attention;
}

/// Tensors that are saved as codes of groups of channels (kernels/elementwise/group_codes.h).
struct CompressedTensors {
  BlockTensorSet int8, fp8;
  bool any() const { return int8.bits != 0 || fp8.bits != 0; }
  bool has(BlockTensor t) const { return int8.has(t) || fp8.has(t); }
  bool operator==(const CompressedTensors&) const = default;
};

struct RecomputeOptions {
  int64_t run = 0;                    ///< layers recomputed from the input of the first; 0: none
  int64_t layers = -1;                ///< number of first layers of every stage that this applies to; -1: all
  BlockTensorSet tensors;             ///< recomputed tensors of other layers, and with run 0 of all layers
  CompressedTensors compressed = {};  ///< compressed tensors of the same layers; dense models alone
  bool any() const { return run > 0 || tensors.bits != 0; }
  bool operator==(const RecomputeOptions&) const = default;
};

/// Consecutive layers of a stage with the same treatment.
struct LayerRun {
  int64_t first = 0, count = 1;  ///< indices in the stage
  bool recompute = false;        ///< recomputed from the input of the first
  BlockTensorSet tensors;        ///< recomputed tensors of a single kept layer
  CompressedTensors compressed;  ///< compressed tensors of a single kept layer
};
/// "runs of 3 layers", "attention_norm, mlp_norm of the first 4 layers of a stage".
std::string describe(const RecomputeOptions& options);
std::vector<LayerRun> layer_runs(const RecomputeOptions& options, int64_t layers);

}  // namespace ltrain
