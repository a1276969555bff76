// y = x W^T + b, for one parameter or several that are contiguous (q, k, v; gate and up), whole or cut over
// the tensor-parallel axes as the mesh's mode says (parallel/mesh/mesh.h): linear.cpp for a line
// (linear_async.cpp: in parts), linear_2d.cpp, linear_3d.cpp.
#pragma once
#include "kernels/matmul/matmul.h"
#include "models/layers/fp8.h"
#include "models/layers/step.h"
#include "models/layers/tensor_parallel.h"

namespace ltrain {

/// How the tensor axis cuts W. column: rows of W, so columns of y: y stays cut. row: columns of W, so x comes
/// cut and y is a sum over the axis. In a cube: column is the way into a sublayer, row the way out. whole:
/// not at all, on a line alone: x and y are rows of the stream, and with sequence parallelism the gradient is
/// a sum over the axis.
enum class LinearSharding : uint8_t { column, row, whole };

/// One named parameter of a linear layer, or `rows` rows from `first` on of one that has `all`.
struct LinearPart {
  std::string name;
  int64_t rows = 0, first = 0, all = 0;
  int copies = 1;  ///< column: tensor ranks next to each other that hold the same rows
};

class Linear {
 public:
  /// Declares weights (rows, in) and, with `bias`, biases. std: of the initial weights.
  void declare(ParameterStore& store, const Groups& groups, bool sequence_parallel,
               const std::vector<LinearPart>& parts, int64_t in, bool bias, double std, LinearSharding cut);
  /// After declare: its products are of FP8 when a step has them, unless settings.keep says otherwise; its
  /// weight is then added to `weights`.
  void quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int slot,
                         std::vector<Fp8Weight>& weights);
  int slot() const { return slot_; }             ///< of FP8; -1: none
  int64_t out_features() const { return out_; }  ///< on this rank
  /// column: x: (stream rows, in), y: (whole rows, out). row: x: (whole rows, in), y: (stream rows, out).
  /// whole: both of stream rows.
  void forward(Step& step, Tensor y, Tensor x) const;
  /// dx = dy W when dx is defined; dW (+)= dy^T x; db (+)= column sums of dy. Marks the gradients ready. With
  /// step.deferred dW is left for then; x and dy then live on, and row must not be handed a dy that changes.
  void backward(Step& step, Tensor dx, Tensor dy, Tensor x, Gathered ahead = {}) const;
  /// Starts to gather what of x backward will read, where it does: for `ahead`, with work between the two
  /// that hides it.
  Gathered gather_ahead(Step& step, Tensor x) const;

 private:
  /// Announces that `dy` goes into the product of the input's gradient, then into that of the weight's, with
  /// no other gradient of this layer between them (Fp8State::expect_both).
  void expect_both(Step& step, Tensor dy) const;
  /// out = op(a) op(b), one of the three products of the layer.
  void product(Step& step, Tensor out, Tensor a, Tensor b, const MatmulArgs& args = {}) const;
  ParameterSpec cut_weight(ParameterSpec spec, const Groups& groups, int copies,
                           bool sequence_parallel) const;
  ParameterSpec cut_bias(ParameterSpec spec, const Groups& groups, int copies, bool sequence_parallel) const;
  Tensor weight(Step& step) const { return step.params.value(weight_, parts_); }
  Tensor bias(Step& step) const { return bias_ >= 0 ? step.params.value(bias_, parts_) : Tensor(); }
  // linear_async.cpp
  /// Whether the step wants its products in parts, and they can be.
  bool runs_in_parts(const Step& step) const;
  /// y := rows of all tensor ranks times op(weight): each rank multiplies its own, then those that come
  /// around a ring while it multiplies. own: (rows / ranks, k). whole: (rows, k), where all of them are to
  /// stay; optional.
  void ring_product(Step& step, Tensor y, Tensor own, Tensor weight, const MatmulArgs& args,
                    Tensor whole = {}) const;
  /// y, of stream rows, := sum over the tensor axis of a op(weight), the sum of a part beside the product of
  /// the next. Where rows are cut, only with args.trans_b.
  void summed_product(Step& step, Tensor y, Tensor a, Tensor weight, const MatmulArgs& args) const;
  void line_forward(Step& step, Tensor y, Tensor x) const;
  void line_backward(Step& step, Tensor dx, Tensor dy, Tensor x, Gathered ahead) const;
  void forward_2d(Step& step, Tensor y, Tensor x) const;
  void backward_2d(Step& step, Tensor dx, Tensor dy, Tensor x) const;
  void forward_3d(Step& step, Tensor y, Tensor x) const;
  void backward_3d(Step& step, Tensor dx, Tensor dy, Tensor x) const;
  void weight_backward_3d(Step& step, Tensor dy, Tensor x) const;
  void weight_backward(Step& step, Tensor dy, Tensor x) const;
  void bias_backward(Step& step, Tensor dy) const;
  int weight_ = -1, bias_ = -1, parts_ = 0;
  int slot_ = -1;  // of FP8
  int64_t out_ = 0;
  LinearSharding cut_ = LinearSharding::column;
};

}  // namespace ltrain
