// RMSNorm or LayerNorm as a layer, with the residual addition before it; or, where none is declared, the
// addition alone.
#pragma once
#include "kernels/norm/norm.h"
#include "models/families/traits.h"
#include "models/layers/step.h"

namespace ltrain {

/// The residual stream between sublayers: x, and what is still to be added to it (with dropout). `delta` is
/// undefined right after the embedding.
struct Residual {
  Tensor x, delta;
  Dropout dropout;
  bool kept = false;  ///< somebody's backward reads x: it is not to be given back
};

class NormLayer {
 public:
  struct Saved {
    Tensor x, y, mean,
        rstd;  ///< x: what the norm was taken of; y: its result, undefined where none is declared
  };
  void declare(ParameterStore& store, const Groups& groups, const std::string& name,
               const ModelTraits& traits, int64_t cols, double eps, bool sequence_parallel);
  /// What reads the result is a linear layer with this slot of FP8: it may be written rounded.
  void feeds(int slot) { slot_ = slot; }
  /// Adds r.delta to r.x, norms the sum. Afterwards saved.x is the sum, r = {sum, undefined}. Releases
  /// r.delta, and the old r.x too unless it is kept. The sum is kept when the step keeps, or with `keep_sum`.
  void forward(Step& step, Residual& r, Saved& saved, bool keep_sum = false) const;
  /// What the sublayer reads after forward: y, or the sum where no norm is declared.
  Tensor output(const Saved& saved) const { return declared() ? saved.y : saved.x; }
  /// Once more y of saved.x.
  void recompute(Step& step, Saved& saved) const;
  /// dx += the norm's gradient (or = with `first`). Releases saved.x and statistics, not y.
  void backward(Step& step, Tensor dx, Tensor dy, Saved& saved, bool first = false) const;

 private:
  bool declared() const { return weight_ >= 0; }
  // Of columns that ranks share.
  void cut_forward(Step& step, const Residual& r, Saved& saved) const;
  void cut_backward(Step& step, const NormBackward& whole) const;
  NormKind kind_ = NormKind::rms;
  int weight_ = -1, bias_ = -1;
  int slot_ = -1;  // of FP8
  double eps_ = 1e-5, offset_ = 0;
};

}  // namespace ltrain
