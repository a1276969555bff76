// RMSNorm or LayerNorm as a layer, with the residual addition before it; without a declared norm, only the
// addition.
#pragma once
#include "kernels/norm/norm.h"
#include "models/families/traits.h"
#include "models/layers/step.h"

namespace ltrain {

/// The residual stream between sublayers: x, and a pending addition `delta` (with dropout). `delta` is
/// undefined right after the embedding.
struct Residual {
  Tensor x, delta;
  Dropout dropout;
  bool kept = false;  ///< a backward reads x: it must not be released
};

class NormLayer {
 public:
  struct Saved {
    Tensor x, y, mean,
        rstd;  ///< x: input of the norm; y: its result, undefined without a declared norm
  };
  void declare(ParameterStore& store, const Groups& groups, const std::string& name,
               const ModelTraits& traits, int64_t cols, double eps, bool sequence_parallel);
  /// The reader of the result is a linear layer with this FP8 slot: the result may be quantized.
  void feeds(int slot) { slot_ = slot; }
  /// Adds r.delta to r.x and normalizes the sum. Afterwards saved.x is the sum, r = {sum, undefined}.
  /// Releases r.delta, and the old r.x unless it is kept. The sum is kept if the step keeps, or with
  /// `keep_sum`.
  void forward(Step& step, Residual& r, Saved& saved, bool keep_sum = false) const;
  /// Input of the sublayer after forward: y, or the sum without a declared norm.
  Tensor output(const Saved& saved) const { return declared() ? saved.y : saved.x; }
  /// Recomputes y from saved.x.
  void recompute(Step& step, Saved& saved) const;
  /// dx += the norm's gradient (= with `first`). Releases saved.x and the statistics, but not y.
  void backward(Step& step, Tensor dx, Tensor dy, Saved& saved, bool first = false) const;

 private:
  bool declared() const { return weight_ >= 0; }
  // With columns sharded over ranks.
  void cut_forward(Step& step, const Residual& r, Saved& saved) const;
  void cut_backward(Step& step, const NormBackward& whole) const;
  NormKind kind_ = NormKind::rms;
  int weight_ = -1, bias_ = -1;
  int slot_ = -1;  // FP8 slot
  double eps_ = 1e-5, offset_ = 0;
};

}  // namespace ltrain
