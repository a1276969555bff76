// y = x W^T + b, for one parameter or several contiguous ones (q, k, v; gate and up), full or sharded over
// the tensor-parallel axes by the mesh's mode (parallel/mesh/mesh.h): linear.cpp for 1D (linear_async.cpp: in
// chunks), linear_2d.cpp, linear_3d.cpp.
#pragma once
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/matmul/matmul.h"
#include "models/layers/fp8.h"
#include "models/layers/lora.h"
#include "models/layers/step.h"
#include "models/layers/tensor_parallel.h"

namespace ltrain {

/// Sharding of W by the tensor axis. column: rows of W, so columns of y, which stays sharded. row: columns of
/// W, so that x is sharded and y is a sum over the axis. In 3D: column leads into a sublayer, row out of it.
/// whole: none, in 1D only: x and y are rows of the stream, and with sequence parallelism the gradient is a
/// sum over the axis.
enum class LinearSharding : uint8_t { column, row, whole };

/// One named parameter of a linear layer, or `rows` of its `all` rows, from `first` on.
struct LinearPart {
  std::string name;
  int64_t rows = 0, first = 0, all = 0;
  int copies = 1;  ///< column: neighbouring tensor ranks with the same rows
};

class Linear {
 public:
  /// Declares weights (rows, in) and, with `bias`, biases. std: standard deviation of the initial weights.
  /// `lora`: adapters of the parts that it names.
  void declare(ParameterStore& store, const Groups& groups, bool sequence_parallel,
               const std::vector<LinearPart>& parts, int64_t in, bool bias, double std, LinearSharding cut,
               const LoraConfig& lora = {});
  /// Called after declare: matmuls are in FP8 in steps with FP8, unless settings.keep excludes the weight,
  /// which is otherwise added to `weights`. `transposed_input`: where x is FP8 codes, backward gets those of
  /// its transpose (Fp8State::kept_input).
  void quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int slot,
                         std::vector<Fp8Weight>& weights, bool transposed_input = false);
  int slot() const { return slot_; }  ///< FP8 slot; -1: none
  /// The slot if x may be FP8 codes (Fp8State::knows_steps); -1 with adapters, which read x too.
  int input_slot() const { return lora_.empty() ? slot_ : -1; }
  int64_t out_features() const { return out_; }  ///< on this rank
  /// column: x: (stream rows, in), y: (full rows, out). row: x: (full rows, in), y: (stream rows, out).
  /// whole: both have stream rows.
  void forward(Step& step, Tensor y, Tensor x) const;
  /// dx = dy W if dx is defined; dW (+)= dy^T x; db (+)= column sums of dy. Marks the gradients ready.
  /// step.deferred defers dW; x and dy then live on, and dy must not change with row.
  /// `bias_summed`: db is there already (bias_sums).
  void backward(Step& step, Tensor dx, Tensor dy, Tensor x, Gathered ahead = {},
                bool bias_summed = false) const;
  /// db, to which the op that makes dy adds the sums of dy's columns; the next `backward` is then called with
  /// bias_summed. Undefined where the bias is frozen or absent, or is not a sum of this rank's dy.
  GradBuffer bias_sums(Step& step) const;
  /// True if `backward` reads dy only as an operand of two FP8 matmuls, whose step is known before: the op
  /// that makes dy may then write codes (Fp8State::gradient), and dy is those.
  bool takes_codes(const Step& step) const;
  /// Starts to gather the rows of x that backward needs, if any: for `ahead`, with work in between that
  /// overlaps it.
  Gathered gather_ahead(Step& step, Tensor x) const;

 private:
  /// Announces that `dy` is an operand of the input gradient's matmul, then of the weight gradient's, with no
  /// other gradient of this layer in between (Fp8State::expect_both).
  void expect_both(Step& step, Tensor dy) const;
  /// out = op(a) op(b), one of the three matmuls of the layer.
  void product(Step& step, Tensor out, Tensor a, Tensor b, const MatmulArgs& args = {}) const;
  /// out = a op(W)
  void weight_product(Step& step, Tensor out, Tensor a, const MatmulArgs& args = {}) const;
  ParameterSpec cut_weight(ParameterSpec spec, const Groups& groups, int copies,
                           bool sequence_parallel) const;
  /// Shards the rows of `spec` as column does in 1D.
  static ParameterSpec cut_rows(ParameterSpec spec, const Groups& groups, int copies);
  ParameterSpec cut_bias(ParameterSpec spec, const Groups& groups, int copies, bool sequence_parallel) const;
  /// W, from NF4 dequantised into a temporary. The caller calls release_weight.
  Tensor weight(Step& step) const;
  void release_weight(Step& step, Tensor w) const;
  Tensor bias(Step& step) const { return bias_ >= 0 ? step.params.value(bias_, parts_) : Tensor(); }
  // linear_lora.cpp
  void declare_adapters(ParameterStore& store, const Groups& groups, bool sequence_parallel,
                        const std::vector<LinearPart>& parts, int64_t in, const LoraConfig& lora);
  /// y += scale x A^T B^T, of the operands of y = x W^T on this rank.
  void add_lora(Step& step, Tensor y, Tensor x) const { add_lora(step, y, x, lora_dropout(step)); }
  void add_lora(Step& step, Tensor y, Tensor x, const Dropout& drop) const;
  /// dx += scale dy B A.
  void add_lora_input_gradient(Step& step, Tensor dx, Tensor dy) const;
  /// dA (+)= scale (dy B)^T x; dB (+)= dy^T (scale x A^T). Marks both ready. `drop`: lora_dropout of the step
  /// that called backward.
  void lora_weight_backward(Step& step, Tensor dy, Tensor x, const Dropout& drop) const;
  /// Adapters of one rank and one scale.
  struct Adapters {
    int a = -1, b = -1, adapters = 0;   // first parameters, and number of A
    int64_t rank = 0, rows = 0;         // rows of all B
    std::vector<CopyRectangle> blocks;  // from B to its blocks
    double scale = 1;
    uint64_t mask = 0;  // random stream of dropout
  };
  void add_lora(Step& step, Tensor y, Tensor x, const Adapters& l, const Dropout& drop) const;
  void lora_weight_backward(Step& step, Tensor dy, Tensor x, const Adapters& l) const;
  // linear_sparse.cpp
  /// Random numbers of a weight gradient. Deferred work has those of the step that called backward.
  struct GradientRandom {
    Dropout lora;      // input of adapters
    RowRandom pruned;  // rows of dy; each parameter has its stream and part
  };
  GradientRandom gradient_random(const Step& step) const;
  /// True if the step's weight gradients have a sparse dy.
  bool prunes_gradient(const Step& step) const;
  /// Estimate of dy, (rows, out), with zeros in the columns of sparse parameters; others are copied. The
  /// caller releases it.
  Tensor pruned_gradient(Step& step, Tensor dy, RowRandom random) const;
  /// Dropout of the rows of x, (rows, in) on this rank, for adapters; the stream is Adapters::mask.
  Dropout lora_dropout(const Step& step) const;
  /// x after the adapter's dropout: x itself without one. The caller calls release_whole.
  static Tensor dropped(Step& step, Tensor x, const Adapters& l, Dropout drop);
  /// B's blocks, (out, adapters rank). The caller releases this and the two below.
  Tensor lora_b_blocks(Step& step, const Adapters& l) const;
  static Tensor lora_inner(Step& step, Tensor x, const Adapters& l);  ///< scale x A^T: (rows, adapters rank)
  /// scale dy B: (rows, adapters rank)
  Tensor lora_inner_gradient(Step& step, Tensor dy, const Adapters& l) const;
  // linear_dora.cpp
  /// Magnitudes of the rows of W + scale B A, as changes of the norms of W's rows.
  struct Magnitudes {
    int first = -1, parts = 0;
    int64_t rows = 0;                   // rows of W that adapters change
    std::vector<CopyRectangle> blocks;  // from the changes to the layer's rows
    bool on() const { return parts > 0; }
  };
  /// `adapted`: for each part, true if it has an adapter.
  void declare_magnitudes(ParameterStore& store, const Groups& groups, bool sequence_parallel,
                          const std::vector<LinearPart>& parts, const std::vector<bool>& adapted);
  bool multiplies_magnitudes(const Step& step) const { return magnitudes_.on() && step.adapters; }
  /// (out, 2): magnitude / norm of each row of W + scale B A, and 1 / magnitude. The norm has no gradient.
  /// The caller releases it.
  Tensor magnitude_factors(Step& step) const;
  /// y *= magnitude / norm, by columns, and then y += bias where one is given; nothing without magnitudes.
  void apply_magnitudes(Step& step, Tensor y, Tensor bias) const;
  /// Gradient of the output before apply_magnitudes, of the step's dtype; dy itself without magnitudes.
  Tensor before_magnitudes(Step& step, Tensor dy) const;
  /// Gradient of the magnitudes, from `dy` before apply_magnitudes.
  void magnitude_backward(Step& step, Tensor dy, Tensor x, const Dropout& drop) const;
  // linear_async.cpp
  /// True if the step wants its matmuls in chunks, and this layer can do so.
  bool runs_in_parts(const Step& step) const;
  /// y = rows of all tensor ranks times op(weight): each rank multiplies its own rows, then those that arrive
  /// around a ring meanwhile. own: (rows / ranks, k). whole: (rows, k), to keep all of them; optional.
  void ring_product(Step& step, Tensor y, Tensor own, Tensor weight, const MatmulArgs& args,
                    Tensor whole = {}) const;
  /// y, stream rows, = sum over the tensor axis of a op(weight); the sum of a chunk overlaps with the matmul
  /// of the next. If rows are sharded, only with args.trans_b.
  void summed_product(Step& step, Tensor y, Tensor a, Tensor weight, const MatmulArgs& args) const;
  void line_forward(Step& step, Tensor y, Tensor x) const;
  /// `bias_dy`: gradient of the output with the bias; undefined: db is there already.
  void line_backward(Step& step, Tensor dx, Tensor dy, Tensor bias_dy, Tensor x, Gathered ahead) const;
  void forward_2d(Step& step, Tensor y, Tensor x) const;
  void backward_2d(Step& step, Tensor dx, Tensor dy, Tensor x) const;
  void forward_3d(Step& step, Tensor y, Tensor x) const;
  void backward_3d(Step& step, Tensor dx, Tensor dy, Tensor x) const;
  void weight_backward_3d(Step& step, Tensor dy, Tensor x) const;
  void weight_backward(Step& step, Tensor dy, Tensor x, const GradientRandom& random) const;
  /// dy undefined: db is there already.
  void bias_backward(Step& step, Tensor dy) const;
  int weight_ = -1, bias_ = -1, parts_ = 0;
  std::vector<Adapters> lora_;
  double lora_dropout_ = 0;
  Magnitudes magnitudes_;
  int slot_ = -1;  // FP8 slot
  bool transposed_input_ = false;
  int64_t out_ = 0;
  LinearSharding cut_ = LinearSharding::column;
};

}  // namespace ltrain
