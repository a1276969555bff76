// Linear layers in FP8: their operands are rounded just before a product, and nothing else is.
//
// Every linear layer of the model has a slot with three roles: what comes in, the weight, the gradient of
// what goes out. With delayed scaling the largest magnitude of each role is noted during a step over all
// micro-batches, and at its end agreed on by all ranks in one all-reduce: steps are then the same under every
// layout. With tensorwise scaling it is that of the micro-batch at hand, agreed on by the ranks that have
// parts of it (tensor, context): the same under every layout with the same micro-batches. Blocks are found
// where they are.
//
// Micro-batches of a step have the same weights: where a weight's codes are stored, it is quantized once.
//
// The experts of a layer are one linear layer with a stack of weights: a role has one step for all of them,
// so that it does not matter on which ranks they are, nor in which parts their rows come.
#pragma once
#include <initializer_list>
#include <vector>

#include "kernels/matmul/grouped_matmul_fp8.h"
#include "kernels/tensor/arena.h"
#include "models/layers/fp8_settings.h"
#include "parallel/mesh/groups.h"

namespace ltrain {

struct Step;

/// Whether fp8.keep names this weight: products with it stay of the compute type.
bool keeps_type(const Fp8Settings& settings, std::string_view weight);

enum class Fp8Role : uint8_t { input, weight, gradient };
inline constexpr int kFp8Roles = 3;
/// The linear layers of a block that have slots, one after the other; those of experts in MoE models alone.
enum class Fp8Linear : uint8_t { qkv, output, up, down, experts_up, experts_down };
constexpr int fp8_slots(bool experts) { return experts ? 6 : 4; }
/// `first`: of the block.
constexpr int fp8_slot(int first, Fp8Linear which) { return first + static_cast<int>(which); }

/// The name that checkpoints have for what delayed scaling remembers.
inline constexpr const char* kFp8History = "optimizer/fp8/amax_history";

/// A weight of this rank whose products are of FP8: (rows, cols), or a stack of so many.
struct Fp8Weight {
  int slot = 0;
  int64_t rows = 0, cols = 0;
  int64_t matrices = 1;
};

/// One operand of a product, before it is rounded, or an input that is. `turned`: the product takes its
/// transpose.
struct Fp8Source {
  Tensor of;
  bool turned = false;
  Fp8Role role = Fp8Role::input;
  bool copied = false;  ///< a weight that has its own place elsewhere: neither kept nor noted
};

/// What a rank keeps for it.
class Fp8State {
 public:
  Fp8State(const Fp8Settings& settings, Stream& compute, Memory& memory, int64_t slots);
  /// From now on these are rounded once between two calls of forget_weights, in training: allocates what
  /// their codes, and those of their transposes, lie in.
  void keep_weights(Stream& compute, Memory& memory, const std::vector<Fp8Weight>& weights);
  /// Weights have changed.
  void forget_weights();
  /// What a slot's products read as input may be rounded by whoever makes it: its step is known before. Then
  /// the codes (input) are what the layer is handed.
  bool rounds_inputs(const Step& step, int slot) const;
  Tensor input(Step& step, std::string_view name, Shape shape) const;
  RoundedOutput output(const Step& step, int slot, Tensor codes) const;
  /// Announces that the gradient `dy` of this slot is the left operand of two products in a row: of the
  /// input's gradient, then transposed of the weight's. Both roundings are then made from one reading of it,
  /// and the second lives from the first product to the end of the other.
  void expect_both(int slot, Tensor dy);
  /// out = a b^T of the rounded operands, as matmul_fp8. An input may be rounded already.
  void multiply(Step& step, int slot, Tensor out, const Fp8Source& a, const Fp8Source& b,
                const MatmulArgs& args);
  /// Of groups of rows, each with its matrix of a stack: a b_g^T (b turned: a b_g) into rows; or, of two that
  /// are turned, into a stack, to which it is added with `accumulate`. Rows beyond the groups' are left
  /// alone.
  void multiply_groups(Step& step, int slot, Tensor out, const Fp8Source& a, const Fp8Source& b,
                       const GroupRows& rows, bool accumulate = false);
  /// Before the first product of a step, and after a state was loaded.
  void begin_step(Stream& compute);
  /// All ranks agree on what was noted, and the next step's steps follow from it.
  void finish_step(Stream& compute, const Group& world);
  Tensor history() const { return history_; }  ///< (slots * roles, length) f32; undefined unless delayed

 private:
  /// A weight's codes as they are (0) and turned (1).
  struct KeptWeight {
    Fp8Operand operand[2];
    bool rounded[2] = {};
    Tensor step;  // tensorwise
    bool has_step = false;
  };
  DType format(Fp8Role role) const;
  Tensor element(Tensor table, int slot, Fp8Role role) const;
  KeptWeight* kept(const Step& step, int slot, const Fp8Source& source);
  /// Steps of operands, from what they hold: one each.
  Tensor current_steps(Step& step, std::initializer_list<const Fp8Source*> sources) const;
  /// The same of a product's, by tensorwise scaling: a kept weight has its own.
  Tensor current_steps(Step& step, const Fp8Source& a, const Fp8Source& b, KeptWeight* kept) const;
  /// Memory for one, without its step where it has one.
  Fp8Operand operand(Memory& memory, MemoryKind kind, Fp8Role role, int64_t rows, int64_t k,
                     int64_t matrices = 1) const;
  void round(Step& step, int slot, const Fp8Source& source, Tensor current, Fp8Operand& out,
             bool note = true) const;
  static bool as_it_is(const Fp8Source& source) { return is_fp8(source.of.dtype) && !source.turned; }
  Fp8Operand temporary(Step& step, int slot, const Fp8Source& source, Tensor current);
  Fp8Operand temporary_rows(Step& step, int slot, const Fp8Source& source, Tensor current,
                            const GroupRows& rows);
  Fp8Operand temporary_turned(Step& step, int slot, const Fp8Source& source, Tensor current,
                              const GroupRows& rows) const;
  static void release(Step& step, Fp8Operand& operand);
  Fp8Operand rounded_weight(Step& step, int slot, const Fp8Source& source, KeptWeight& kept) const;
  Fp8StepArgs step_args() const;
  Fp8Settings settings_;
  Tensor steps_, amax_, history_;  // of every slot and role, the same on all ranks
  std::vector<KeptWeight> kept_;   // by slot
  /// A gradient that is rounded both ways at once: announced; then its transposed codes, until they are used.
  struct BothWays {
    int slot = -1;
    Tensor of;
    Fp8Operand turned;
  } both_;
};

}  // namespace ltrain
