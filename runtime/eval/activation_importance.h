// Importance of layers, of neurons of feed-forwards and of experts by a model's activations on sequences, for
// `ltrain checkpoint prune --samples` and `ltrain checkpoint experts prune --samples`.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/data/batch_loader.h"
#include "runtime/program/train_program.h"
#include "runtime/weights/edit_experts.h"
#include "runtime/weights/prune.h"

namespace ltrain {

/// Sums activations of a dense model whose program has one rank, in fp32 or fp64.
class ActivationSums final : public ActivationObserver {
 public:
  explicit ActivationSums(const ModelConfig& model);
  /// Before the passes of a batch, whose samples without an index are padding.
  void begin_batch(const data::Batch& batch);
  void residual(Stream& s, const Tensor& x) override;
  void neurons(Stream& s, const Tensor& activation) override;
  /// Importance over the batches so far.
  Importance importance() const;

 private:
  int64_t samples_ = 0, length_ = 0;          // size of this batch, without padding
  int64_t residuals_ = 0;                     // residual() calls in this batch
  int64_t tokens_ = 0;                        // total of all batches
  std::vector<double> before_;                // the residual stream before the layer
  std::vector<double> cosines_;               // sums over tokens, by layer
  std::vector<std::vector<double>> squares_;  // sums of squared means, by layer and neuron
};

/// Sums of weighted norms of experts' outputs in a model whose program has one rank, in fp32 or fp64.
class ExpertSums final : public ActivationObserver {
 public:
  explicit ExpertSums(const ModelConfig& model);
  void begin_batch(const data::Batch& batch);
  void residual(Stream& s, const Tensor& x) override;
  void neurons(Stream& /*s*/, const Tensor& /*activation*/) override {}
  void experts(Stream& s, const Routing& routing, const Tensor& outputs) override;
  /// Mean over the tokens that chose an expert of its weight times the L2 norm of its output (REAP,
  /// arXiv:2510.13999); 0 where none has. Weights are those that the layer multiplies outputs with.
  ExpertUse saliency() const;

 private:
  struct Sum {
    double total = 0;
    int64_t tokens = 0;
  };
  int64_t real_tokens_ = 0;  // tokens of this batch, without padding
  int64_t layer_ = -1;       // the layer that runs
  int64_t first_ = 0;        // first token of its next range
  int64_t experts_ = 0;
  std::map<int64_t, std::vector<Sum>> sums_;  // indexed by layer and expert
};

/// Importance on the first samples of `options` (data::LoaderOptions::eval_samples), in the order of the
/// files. Throws Error (data) if there are none.
Importance activation_importance(TrainProgram& program, const data::LoaderOptions& options);
/// The same for experts: ExpertSums::saliency().
ExpertUse expert_saliency(TrainProgram& program, const data::LoaderOptions& options);

}  // namespace ltrain
