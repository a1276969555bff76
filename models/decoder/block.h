// One transformer block, with norms before its sublayers, after them, or both (NormPlacement).
#pragma once
#include "kernels/elementwise/group_codes.h"
#include "models/attention/attention_layer.h"
#include "models/layers/activation_offload.h"
#include "models/layers/mlp_layer.h"
#include "models/layers/norm_layer.h"
#include "models/layers/recompute.h"
#include "models/moe/moe_layer.h"

namespace ltrain {

class Block {
 public:
  struct Saved {
    NormLayer::Saved norm1, norm2;    ///< norms of sublayer inputs; x is set without a norm, too
    NormLayer::Saved after1, after2;  ///< norms of sublayer outputs
    AttentionLayer::Saved attention;
    MlpLayer::Saved mlp;
    MoeLayer::Saved moe;
    OffloadedTensors offloaded;
    /// A compressed tensor of the block, which is undefined meanwhile.
    struct Compressed {
      BlockTensor which;
      Shape shape;
      GroupCodes codes;
    };
    std::vector<Compressed> compressed;
    /// The block's tensors with that name, defined or not.
    std::vector<Tensor*> tensors(BlockTensor which);
    /// Tensors of shared experts and of replicas of hot ones, which are never recomputed.
    std::vector<Tensor*> not_recomputed(BlockTensor which);
  };
  /// Purpose of a forward.
  struct Keep {
    bool input = false;                 ///< keeps its input if the step keeps nothing
    bool output = true;                 ///< false: last of the recomputed layers, whose output is not needed
    BlockTensorSet without;             ///< in a step that keeps: tensors to drop
    CompressedTensors compressed = {};  ///< in a step that keeps: tensors to compress
    bool recompute = false;             ///< recomputation: the routing of tokens is in Saved
  };
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               bool expert_tensor, const DispatchOptions& dispatch, int64_t index);
  /// Linear::quantize_operands for the block. `first_slot`: slot of its first linear layer.
  void quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int first_slot,
                         std::vector<Fp8Weight>& weights);
  void forward(Step& step, const MicroBatch& mb, Residual& r, Tensor rope_table, Saved& saved,
               const Keep& keep) const;
  void forward(Step& step, const MicroBatch& mb, Residual& r, Tensor rope_table, Saved& saved) const {
    forward(step, mb, r, rope_table, saved, Keep());
  }
  /// Called before backward: decompresses the compressed tensors of forward, and recomputes the dropped ones.
  void recompute(Step& step, const MicroBatch& mb, Tensor rope_table, Saved& saved) const;
  /// Called after forward, in a step that keeps: offloads the tensors of `options`, which need() brings back.
  void offload(Step& step, Saved& saved, const ActivationOffloadOptions& options) const;
  /// dx: (stream rows, H) in and out, gradient of the residual stream.
  void backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor rope_table, Saved& saved) const;

 private:
  /// Replaces a saved tensor by its codes, if `keep` says so.
  void compress(Step& step, const MicroBatch& mb, Saved& saved, BlockTensor which, const Keep& keep) const;
  void decompress(Step& step, Saved& saved) const;
  /// Gradient through the dropout of a sublayer's output: dx itself without dropout, or a copy if its weight
  /// gradients are deferred and dx will change. Must be released unless it is dx.
  Tensor through_dropout(Step& step, const MicroBatch& mb, Tensor dx, const char* which) const;
  /// Memory for a sublayer's output, kept if a norm follows.
  Tensor sublayer_output(Step& step, const char* name, const Shape& shape) const;
  /// delta = norm of delta, with norms after sublayers.
  void norm_output(Step& step, const NormLayer& norm, Tensor& delta, NormLayer::Saved& saved) const;
  /// Backward of norm_output: gradient of the sublayer's output. Releases `dout` unless it is dx or the
  /// result.
  Tensor norm_output_backward(Step& step, const NormLayer& norm, Tensor dout, Tensor dx,
                              NormLayer::Saved& saved) const;
  NormLayer norm1_, norm2_;    // not declared with norms only after sublayers
  NormLayer after1_, after2_;  // not declared with norms only before sublayers
  bool norms_after_ = false;   // norms of sublayer outputs
  AttentionLayer attention_;
  MlpLayer mlp_;
  MoeLayer moe_;
  bool is_moe_ = false;  ///< the block has moe_ instead of mlp_
  double dropout_ = 0;
  std::string place_;
};

}  // namespace ltrain
