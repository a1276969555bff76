// Linear layers in FP8: only operands of matmuls are quantized, just before the matmul.
//
// Every linear layer of the model has a slot with three roles: input, weight, and gradient of the output.
// With delayed scaling the largest magnitude of each role is noted during a step over all micro-batches, and
// all ranks agree on it in one all-reduce at the end of the step: quantization steps are then the same under
// every layout. Tensorwise scaling uses the magnitude of the current micro-batch, on which the ranks with
// parts of it agree (tensor, context): the same under every layout with the same micro-batches. Blockwise
// scaling needs no agreement.
//
// Micro-batches of a step have the same weights: a weight with stored codes is quantized once.
//
// The experts of a layer are one linear layer with a stack of weights: a role has one step for all of them,
// so that it does not depend on their ranks, nor on the division of their rows.
#pragma once
#include <initializer_list>
#include <vector>

#include "kernels/matmul/grouped/grouped_matmul_fp8.h"
#include "kernels/tensor/arena.h"
#include "models/layers/fp8_settings.h"
#include "parallel/mesh/groups.h"

namespace ltrain {

struct Step;

/// True if fp8.keep names this weight: its matmuls stay in the compute type.
bool keeps_type(const Fp8Settings& settings, std::string_view weight);

enum class Fp8Role : uint8_t { input, weight, gradient };
inline constexpr int kFp8Roles = 3;
/// Linear layers of a block with slots, in order; the last two exist only in MoE models.
enum class Fp8Linear : uint8_t { qkv, output, up, down, experts_up, experts_down };
constexpr int fp8_slots(bool experts) { return experts ? 6 : 4; }
/// `first`: first slot of the block.
constexpr int fp8_slot(int first, Fp8Linear which) { return first + static_cast<int>(which); }
/// Slot of the output layer, behind those of `layers` layers.
constexpr int64_t fp8_output_slot(int64_t layers, bool experts) { return layers * fp8_slots(experts); }

/// Multiples of this are the widths and rows that cuBLASLt multiplies: operand rows lie at multiples of 16
/// bytes.
inline constexpr int64_t kFp8Aligned = 16;

/// Name of delayed scaling's history in checkpoints.
inline constexpr const char* kFp8History = "optimizer/fp8/amax_history";

/// A weight of this rank with FP8 matmuls: (rows, cols), or a stack of `matrices`.
struct Fp8Weight {
  int slot = 0;
  int64_t rows = 0, cols = 0;
  int64_t matrices = 1;
};

/// An operand of a matmul before quantization, or an already quantized input. `transposed`: the matmul uses
/// its transpose.
struct Fp8Source {
  Tensor of;
  bool transposed = false;
  Fp8Role role = Fp8Role::input;
  /// a copy of another rank's weight: its codes are not kept, and its magnitude is not noted
  bool copied = false;
  bool is_transposed = false;  ///< `of` is codes of the transpose (kept_input)
};

/// FP8 state of a rank.
class Fp8State {
 public:
  Fp8State(const Fp8Settings& settings, Stream& compute, Memory& memory, int64_t slots);
  /// From now on these weights are quantized once between two calls of forget_weights, in training. Allocates
  /// memory for their codes, and for those of their transposes.
  void keep_weights(Stream& compute, Memory& memory, const std::vector<Fp8Weight>& weights);
  /// Called after weights have changed.
  void forget_weights();
  /// Until release_weight, several matmuls use this weight, which does not change: it is quantized once for
  /// each orientation, in temporaries if keep_weights has allocated nothing. In evaluation, no matmul of a
  /// backward follows.
  void hold_weight(Step& step, const Fp8Weight& weight);
  void release_weight(Step& step, int slot);
  /// Largest magnitude that a role is expected to have in the first step: delayed scaling begins with it. A
  /// loaded state replaces it.
  void expect(Stream& compute, int slot, Fp8Role role, double amax);
  /// True if the op that makes a slot's input, or the gradient of its output, may quantize it, because its
  /// step is known before. The layer then gets the codes (input, gradient).
  bool knows_steps(const Step& step, int slot) const;
  Tensor input(Step& step, std::string_view name, Shape shape) const;
  /// Codes of an input that an op writes in a forward with a backward: plain ones for this forward, which the
  /// caller releases, and those of the transpose, which the backward reads.
  RoundedOutput kept_input(Step& step, int slot, std::string_view name, Shape shape) const;
  RoundedOutput output(const Step& step, int slot, Tensor codes) const;
  /// Codes of a slot's gradient that an op writes, and of its transpose. The matmuls that expect_both
  /// announces then take `codes`, which the caller releases.
  RoundedOutput gradient(Step& step, int slot, Shape shape);
  /// Announces that the gradient `dy` of this slot is the left operand of two matmuls in a row: for the
  /// input's gradient, then transposed for the weight's. One read of it then makes both codes; the transposed
  /// ones live from the first matmul to the end of the other.
  void expect_both(int slot, Tensor dy);
  /// out = a b^T of the quantized operands, as in matmul_fp8. An input may be quantized already.
  void multiply(Step& step, int slot, Tensor out, const Fp8Source& a, const Fp8Source& b,
                const MatmulArgs& args);
  /// One of the three matmuls of a linear layer, by the transposes of `args`: x W^T, dy W, dy^T x.
  /// `transposed_input`: x as codes is that of its transpose in dy^T x (kept_input).
  void multiply_linear(Step& step, int slot, Tensor out, Tensor a, Tensor b, const MatmulArgs& args,
                       bool transposed_input = false);
  /// Matmuls of groups of rows, each with its matrix of a stack: a b_g^T (b transposed: a b_g) into rows; or,
  /// with both transposed, into a stack, added with `accumulate`. Rows beyond the groups are unchanged.
  void multiply_groups(Step& step, int slot, Tensor out, const Fp8Source& a, const Fp8Source& b,
                       const GroupRows& rows, bool accumulate = false);
  /// Called before the first matmul of a step, and after a state was loaded.
  void begin_step(Stream& compute);
  /// All ranks agree on the noted magnitudes, from which the quantization steps of the next step follow.
  void finish_step(Stream& compute, const Group& world);
  /// (slots * roles, length) f32; undefined except with delayed scaling
  Tensor history() const { return history_; }

 private:
  /// Codes of a weight, plain (0) and transposed (1).
  struct KeptWeight {
    Fp8Operand operand[2];
    bool rounded[2] = {};
    Tensor step;  // tensorwise
    bool has_step = false;
    bool held = false;       // between hold_weight and release_weight
    bool temporary = false;  // its memory is that of hold_weight
    void forget() { rounded[0] = rounded[1] = has_step = false; }
  };
  KeptWeight& weight_slot(int slot);
  /// Allocates memory for the codes of a weight, of its transpose with `both`, and for its step.
  void allocate_codes(Stream& compute, Memory& memory, MemoryKind kind, const Fp8Weight& weight, bool both);
  DType format(Fp8Role role) const;
  Tensor element(Tensor table, int slot, Fp8Role role) const;
  KeptWeight* kept(const Step& step, int slot, const Fp8Source& source);
  /// Quantization steps of operands from their current values, one each.
  Tensor current_steps(Step& step, std::initializer_list<const Fp8Source*> sources) const;
  /// Steps of a matmul's operands with tensorwise scaling; a kept weight has its own.
  Tensor current_steps(Step& step, const Fp8Source& a, const Fp8Source& b, KeptWeight* kept) const;
  /// Memory for an operand; excludes a step that exists elsewhere.
  Fp8Operand operand(Memory& memory, MemoryKind kind, Fp8Role role, int64_t rows, int64_t k,
                     int64_t matrices = 1) const;
  void round(Step& step, int slot, const Fp8Source& source, Tensor current, Fp8Operand& out,
             bool note = true) const;
  static bool as_it_is(const Fp8Source& source) {
    return is_fp8(source.of.dtype) && source.transposed == source.is_transposed;
  }
  Fp8Operand temporary(Step& step, int slot, const Fp8Source& source, Tensor current);
  Fp8Operand temporary_rows(Step& step, int slot, const Fp8Source& source, Tensor current,
                            const GroupRows& rows);
  Fp8Operand temporary_transposed(Step& step, int slot, const Fp8Source& source, Tensor current,
                                  const GroupRows& rows) const;
  static void release(Step& step, Fp8Operand& operand);
  Fp8Operand rounded_weight(Step& step, int slot, const Fp8Source& source, KeptWeight& kept) const;
  Fp8StepArgs step_args() const;
  Fp8Settings settings_;
  Tensor steps_, amax_, history_;  // for every slot and role, the same on all ranks
  std::vector<KeptWeight> kept_;   // indexed by slot
  /// A gradient that is quantized in both orientations at once: announced; then its transposed codes, until
  /// they are used.
  struct BothWays {
    int slot = -1;
    Tensor of;
    Fp8Operand transposed;
  } both_;
};

}  // namespace ltrain
