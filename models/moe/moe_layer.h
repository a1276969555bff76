// An MoE layer instead of the feed-forward: router, experts, shared experts.
#pragma once
#include "models/layers/mlp_layer.h"
#include "models/moe/expert_adapters.h"
#include "models/moe/expert_products.h"
#include "models/moe/expert_replicas.h"
#include "models/moe/router.h"
#include "models/moe/token_dispatch.h"

namespace ltrain {

/// Prefix of the names of a layer's router and experts.
std::string moe_prefix(const ModelConfig& config, int64_t layer);
/// Name for ModelConfig::has_correction_bias.
std::string correction_bias_name(const ModelConfig& config, int64_t layer);

class MoeLayer {
 public:
  /// A chunk of the tokens, which is exchanged while experts compute another.
  struct Chunk {
    Dispatched dispatched;
    Tensor rows;  ///< (most rows, H) rows of this rank's experts, sorted by expert, of the first slice
    Tensor keys;  ///< (most rows, elements of a key) keys of the rows, with dropout of adapters' inputs
    Tensor hidden, act;  ///< (most rows, 2F) and (most rows, F): before and after the activation function
    Tensor dact;         ///< (most rows, F) gradient of `act`, in backward
  };
  struct Saved {
    Router::Saved router;
    std::vector<Chunk> chunks;
    std::vector<ExpertReplicas::Copy> copies;
    std::vector<Chunk> copied;  ///< work of each replica: rows of this rank's tokens
    MlpLayer::Saved shared;
    Tensor shared_out;          ///< (tokens, H) before its gate
    Router::Saved shared_gate;  ///< a router of one expert, whose score is the gate
    /// Pointers to the same tensor of each chunk, or of each replica.
    template <class F>
    std::vector<Tensor*> of_chunks(F&& tensor) {
      return each(chunks, tensor);
    }
    template <class F>
    std::vector<Tensor*> of_copies(F&& tensor) {
      return each(copied, tensor);
    }

   private:
    template <class F>
    static std::vector<Tensor*> each(std::vector<Chunk>& of, F&& tensor) {
      std::vector<Tensor*> out;
      for (Chunk& c : of) out.push_back(tensor(c));
      return out;
    }
  };
  /// Names are Hugging Face's, except for the experts, which are one tensor of each kind: gate_up_proj
  /// (experts, 2, F, H) and down_proj (experts, H, F).
  void declare(ParameterStore& store, const Groups& groups, const ModelConfig& config, bool sequence_parallel,
               bool expert_tensor, const DispatchOptions& dispatch, const std::string& prefix, int64_t layer,
               double out_std);
  /// Linear::quantize_operands for experts and shared experts. `first_slot`: first slot of the block.
  void quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int first_slot,
                         std::vector<Fp8Weight>& weights);
  /// `recompute`: `saved` has the routing of an earlier forward, of a step that keeps nothing else, and
  /// tokens are not counted again. y: undefined if not needed.
  void forward(Step& step, const MicroBatch& mb, Tensor y, Tensor x, Saved& saved, bool recompute) const;
  /// dx = gradient of x. Releases `saved`.
  void backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor dy, Tensor x, Saved& saved) const;

 private:
  /// True if tensor ranks share each expert: every rank has all rows and a part of the hidden units.
  bool cut_experts(const Step& step) const { return expert_tensor_ && step.groups.tensor.size() > 1; }
  Tensor whole(Step& step, Tensor x) const;
  /// Routes the tokens and counts their rows.
  void route(Step& step, const MicroBatch& mb, Tensor tokens, const std::vector<TokenRange>& ranges,
             int64_t capacity, Saved& saved) const;
  void combine(Step& step, Tensor y, int64_t n, const std::vector<TokenRange>& ranges, Saved& saved) const;
  /// Adds to y (n, H) the rows of x with the weights of their zero experts.
  void identity_forward(Step& step, Tensor y, Tensor x, const Routing& routing) const;
  /// Adds to dx, the gradient of x; returns that of the router's identity_weights.
  Tensor identity_backward(Step& step, Tensor dx, Tensor dy, Tensor x, const Routing& routing) const;
  /// Called after a forward that keeps nothing; in training the routing stays.
  void release_saved(Step& step, Saved& saved) const;
  /// Chunks of `tokens` tokens.
  std::vector<TokenRange> chunks(int64_t tokens) const;
  /// Experts' weights, or their gradients: a rank's own stacks, or those of one replica.
  struct Weights {
    ExpertMatrices gate_up, down;
    Tensor gate_up_bias, down_bias;  ///< with expert_bias; the latter only if this rank adds it
  };
  ExpertStacks stacks(const Step& step) const;
  Weights weights_of(const Step& step, const ExpertStacks& s, bool copy) const;
  Weights own(const Step& step) const { return weights_of(step, stacks(step), false); }
  Weights copied(const Step& step, const ExpertReplicas::Copy& copy) const {
    return weights_of(step, copy.stacks, true);
  }
  /// Computes the chunk's hidden and act for the rows of one of its slices.
  void run_hidden(Step& step, Chunk& chunk, size_t slice, const Weights& weights) const;
  void run_activation(Step& step, Chunk& chunk, size_t slice) const;
  void run_experts(Step& step, Chunk& chunk, size_t slice, Tensor out, const Weights& weights) const;
  /// drows = gradient of the rows; the chunk's hidden = gradient of the hidden units.
  void rows_backward(Step& step, Tensor drows, Tensor dout, Chunk& chunk, size_t slice,
                     const Weights& weights) const;
  void experts_backward(Step& step, Tensor drows, Tensor dout, Chunk& chunk, size_t slice, bool last) const;
  /// Called before backward: recomputes a slice's dropped tensors.
  void run_again(Step& step, Chunk& chunk, size_t slice, Tensor tokens) const;
  /// Adds rows beyond the budget to the routers' sums.
  void add_up_beyond(Step& step, const MicroBatch& mb, const Saved& saved) const;
  void copies_forward(Step& step, Tensor tokens, Saved& saved) const;
  void copies_combine(Step& step, Tensor y, Saved& saved) const;
  /// Adds to dweights; returns the gradients of rows, one tensor for each replica.
  std::vector<Tensor> copies_backward(Step& step, Tensor dweights, Tensor dy, Saved& saved) const;
  void copies_permute_backward(Step& step, Tensor dx, std::vector<Tensor>& drows, Saved& saved) const;
  void weights_backward(Step& step, const ExpertRowCounts& counts, Tensor rows, Tensor keys, Tensor dhidden,
                        Tensor act, Tensor dout, bool last, bool at_once) const;
  /// Fills the chunks' keys with those of `tokens` rows of this rank.
  void send_keys(Step& step, const MicroBatch& mb, int64_t tokens, int64_t capacity,
                 const std::vector<TokenRange>& ranges, Saved& saved) const;
  /// Dropout of the inputs of the adapters of gate and up, or with `cut` of down, whose columns may be cut.
  ExpertDropout dropout_of(const Step& step, Tensor keys, bool cut) const;
  void declare_biases(ParameterStore& store, const Groups& groups, const ModelConfig& config,
                      const std::string& prefix, int64_t layer);
  void declare_adapters(ParameterStore& store, const Groups& groups, const ModelConfig& config,
                        const std::string& prefix, int64_t layer);
  void declare_shared(ParameterStore& store, const Groups& groups, const ModelConfig& config,
                      bool sequence_parallel, const std::string& prefix, int64_t layer, double out_std);
  void shared_forward(Step& step, const MicroBatch& mb, Tensor y, Tensor x, Saved& saved) const;
  void shared_backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor dy, Tensor x, Saved& saved) const;

  Router router_, shared_gate_;
  MlpLayer shared_;
  int gate_up_ = -1, down_ = -1, gate_up_bias_ = -1, down_bias_ = -1;
  int gate_up_slot_ = -1, down_slot_ = -1;  // FP8 slots
  ExpertAdapters gate_up_adapters_, down_adapters_;
  double adapter_dropout_ = 0;
  FeedForward kind_ = FeedForward::swiglu;
  int64_t experts_ = 0, zero_experts_ = 0, top_k_ = 0, intermediate_ = 0;
  std::unique_ptr<TokenDispatch> dispatch_;
  std::unique_ptr<ExpertReplicas> replicas_;
  int chunks_ = 1;
  bool expert_tensor_ = true, has_shared_ = false, has_shared_gate_ = false;
  std::string place_;
};

}  // namespace ltrain
