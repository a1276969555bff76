// One transformer block, with norms before its sublayers or after them (NormPlacement).
#pragma once
#include "models/layers/activation_offload.h"
#include "models/layers/attention_layer.h"
#include "models/layers/mlp_layer.h"
#include "models/layers/norm_layer.h"
#include "models/layers/recompute.h"
#include "models/moe/moe_layer.h"

namespace ltrain {

class Block {
 public:
  struct Saved {
    NormLayer::Saved norm1, norm2;    ///< of what a sublayer reads; x is there without a norm too
    NormLayer::Saved after1, after2;  ///< of what it gives
    AttentionLayer::Saved attention;
    MlpLayer::Saved mlp;
    MoeLayer::Saved moe;
    OffloadedTensors offloaded;
    /// What it has under that name, defined or not.
    std::vector<Tensor*> tensors(BlockTensor which);
    /// The same of shared experts and of copies of hot ones, which always stays or leaves.
    std::vector<Tensor*> not_recomputed(BlockTensor which);
  };
  /// What a forward is for.
  struct Keep {
    bool input = false;      ///< keeps its input where the step keeps nothing
    bool output = true;      ///< false: the last of layers that are computed again, whose output nobody needs
    BlockTensorSet without;  ///< of a step that keeps: not these
    bool recompute = false;  ///< computed again: how tokens were routed to experts is in Saved
  };
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               bool expert_tensor, const DispatchOptions& dispatch, int64_t index);
  /// As Linear::quantize_operands. `first_slot`: of its linear layers.
  void quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int first_slot,
                         std::vector<Fp8Weight>& weights);
  void forward(Step& step, const MicroBatch& mb, Residual& r, Tensor rope_table, Saved& saved,
               const Keep& keep) const;
  void forward(Step& step, const MicroBatch& mb, Residual& r, Tensor rope_table, Saved& saved) const {
    forward(step, mb, r, rope_table, saved, Keep());
  }
  /// Before backward: what forward made and did not keep.
  void recompute(Step& step, const MicroBatch& mb, Tensor rope_table, Saved& saved) const;
  /// After forward, in a step that keeps: writes out what `options` says, which is there again after need().
  void offload(Step& step, Saved& saved, const ActivationOffloadOptions& options) const;
  /// dx: (stream rows, H) inout, the gradient of the residual stream.
  void backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor rope_table, Saved& saved) const;

 private:
  /// What comes back through the dropout of a sublayer's output: dx itself when there is none, or a copy of
  /// it when its weight gradients wait and dx will change. To be given back unless it is dx.
  Tensor through_dropout(Step& step, const MicroBatch& mb, Tensor dx, const char* which) const;
  /// Memory for what a sublayer gives: kept where a norm is taken of it.
  Tensor sublayer_output(Step& step, const char* name, const Shape& shape) const;
  /// delta := the norm of it, where norms are after sublayers.
  void norm_output(Step& step, const NormLayer& norm, Tensor& delta, NormLayer::Saved& saved) const;
  /// And back: the gradient of what the sublayer gave. Gives `dout` back unless it is dx or the result.
  Tensor norm_output_backward(Step& step, const NormLayer& norm, Tensor dout, Tensor dx,
                              NormLayer::Saved& saved) const;
  NormLayer norm1_, norm2_;    // not declared where norms are after alone
  NormLayer after1_, after2_;  // not declared where they are before alone
  bool norms_after_ = false;   // of the sublayers' outputs
  AttentionLayer attention_;
  MlpLayer mlp_;
  MoeLayer moe_;
  bool is_moe_ = false;  ///< moe_ is there and mlp_ is not
  double dropout_ = 0;
  std::string place_;
};

}  // namespace ltrain
