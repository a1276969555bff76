// LoRA of a layer's experts: y = x W_e^T + scale x A_e^T B_e^T for the rows of each expert e, as grouped
// matmuls. Gate and up of an expert have factors of their own, as PEFT has them for its modules: A of both is
// one matrix of twice the rank, and B has two blocks.
#pragma once
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/matmul/grouped/grouped_matmul.h"
#include "models/layers/step.h"

namespace ltrain {

struct ModelConfig;
struct LoraConfig;

/// Experts of a layer whose matrices lora.target_modules names.
struct NamedExperts {
  int64_t gate = 0, up = 0, down = 0;
  bool any() const { return gate + up + down > 0; }
};
/// `entry`: of target_modules, or of a pattern of ranks; all-linear names no expert.
NamedExperts named_experts(const ModelConfig& config, int64_t layer, const std::string& entry);
/// Counts for all entries of lora.target_modules.
NamedExperts named_experts(const ModelConfig& config, int64_t layer);
/// config.lora, with the rank and alpha of each adapted stack of experts in front of its patterns, by the
/// stack's own name: "model.layers.0.mlp.experts.gate_up_proj". The patterns name single experts' matrices.
LoraConfig lora_of_stacks(const ModelConfig& config);

/// True if adapters of experts have dropout: their rows then travel with keys.
bool drops_inputs_of_experts(const ModelConfig& config);
/// Name of a row, position + length x sample, for the masks of its dropout on the ranks of its experts. Limbs
/// of 13 bits have 16 bits each: those of a normal number of any 16-bit type, so that rows of every float
/// type carry keys to the bit.
int64_t row_key(int64_t row);

/// Dropout of the inputs of adapters: the mask of a row is a function of its key and of the adapter's module.
struct ExpertDropout {
  double p = 0;
  uint64_t seed = 0;
  Tensor keys;              ///< (at least all rows) i64
  int part = 0, parts = 1;  ///< RowRandom's
  bool on() const { return p > 0; }
};

class ExpertAdapters {
 public:
  /// a: (experts, rank, in), b: (experts, out, rank) of this rank; of two matrices (experts, 2, rank, in) and
  /// (experts, 2, out, rank).
  /// masks: for each matrix of an expert, and then each of this rank's experts, the stream of its masks.
  void declare(ParameterStore& store, ParameterSpec a, ParameterSpec b, double scale,
               std::vector<uint64_t> masks);
  /// DoRA (arXiv:2402.09353): the rows of each expert's W + scale B A have trained magnitudes. change:
  /// (experts, out) or (experts, 2, out) of this rank, as linear_dora.cpp has it; `frozen`: id of the stack
  /// of W. `sums`: tensor ranks have parts of each row of W.
  void declare_magnitudes(ParameterStore& store, ParameterSpec change, int frozen, bool sums);
  bool on() const { return a_ >= 0; }
  int a() const { return a_; }
  int b() const { return b_; }
  /// y += scale x A^T B^T, and with magnitudes times these over the norms. x: (at least all rows, in), y: (at
  /// least all rows, matrices out), x W^T.
  void add(Step& step, Tensor y, Tensor x, const GroupRows& rows, const ExpertDropout& drop) const;
  /// Gradient of the output before it is multiplied by magnitudes: a copy, which the caller releases, or dy
  /// itself without magnitudes.
  Tensor before_magnitudes(Step& step, Tensor dy, const GroupRows& rows) const;
  /// dx += scale dy B A. dy: of before_magnitudes.
  void add_input_gradient(Step& step, Tensor dx, Tensor dy, const GroupRows& rows,
                          const ExpertDropout& drop) const;
  /// dA (+)= scale (dy B)^T x; dB (+)= scale dy^T (x A^T), each with dy before the magnitudes; and the
  /// gradient of these. dy: gradient of the output. `last`: marks all ready.
  void weight_backward(Step& step, Tensor dy, Tensor x, const GroupRows& rows, const ExpertDropout& drop,
                       bool last) const;

 private:
  void add_factors(Step& step, Tensor y, Tensor x, const GroupRows& rows, const ExpertDropout& drop) const;
  void factors_backward(Step& step, Tensor dy, Tensor x, const GroupRows& rows, const ExpertDropout& drop,
                        bool last) const;
  // ---- magnitudes (expert_magnitudes.cpp) ----
  bool multiplies() const { return change_ >= 0; }
  /// (experts, matrices out, 2), magnitude_factors() of the rows of each expert. The caller releases it.
  Tensor magnitude_factors(Step& step) const;
  void magnitude_backward(Step& step, Tensor dy, Tensor x, Tensor factors, const GroupRows& rows,
                          const ExpertDropout& drop, bool last) const;
  /// scale B as blocks of a stack (experts, matrices, out, matrices rank) that is zero elsewhere, each
  /// element rounded once. The caller releases it.
  Tensor scaled_b(Step& step) const;
  /// x A^T: (rows of x, matrices rank). The caller releases it, and those below.
  Tensor inner(Step& step, Tensor x, const GroupRows& rows, const ExpertDropout& drop) const;
  /// scale dy B: (rows of dy, matrices rank)
  Tensor inner_gradient(Step& step, Tensor dy, const GroupRows& rows) const;

  int64_t matrices() const { return factor_.rank == 4 ? factor_[1] : 1; }
  int64_t rank() const { return factor_[-1]; }
  /// to = from with the dropped elements of a matrix's input zero. May alias.
  void drop_rows(Step& step, Tensor to, Tensor from, const GroupRows& rows, int64_t matrix,
                 const ExpertDropout& drop) const;
  /// Input of the A of a matrix: x itself without dropout.
  Tensor dropped(Step& step, Tensor x, const GroupRows& rows, int64_t matrix,
                 const ExpertDropout& drop) const;
  /// A copy of z with the columns of other matrices zero.
  Tensor columns_of(Step& step, Tensor z, const GroupRows& rows, int64_t matrix) const;

  int a_ = -1, b_ = -1;
  int change_ = -1, frozen_ = -1;  // changes of magnitudes, and the stack of W; -1: no magnitudes
  bool sums_ = false;              // squares of rows are summed over the tensor axis
  double scale_ = 1;
  Shape factor_, blocks_shape_;        // shapes of B and scaled_b
  std::vector<CopyRectangle> blocks_;  // copies from the one to the other
  std::vector<uint64_t> masks_;
};

}  // namespace ltrain
