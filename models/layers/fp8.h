// Linear layers in FP8: their operands are rounded just before a product, and nothing else is.
//
// Every linear layer of the model has a slot with three roles: what comes in, the weight, the gradient of
// what goes out. With delayed scaling the largest magnitude of each role is noted during a step over all
// micro-batches, and at its end agreed on by all ranks in one all-reduce: steps are then the same under every
// layout. With tensorwise scaling it is that of the micro-batch at hand, agreed on by the ranks that have
// parts of it (tensor, context): the same under every layout with the same micro-batches. Blocks are found
// where they are.
#pragma once
#include "kernels/matmul/matmul_fp8.h"
#include "kernels/tensor/arena.h"
#include "models/layers/fp8_settings.h"
#include "parallel/mesh/groups.h"

namespace ltrain {

struct Step;

enum class Fp8Role : uint8_t { input, weight, gradient };
inline constexpr int kFp8Roles = 3;
/// The linear layers of a block that have slots.
enum class Fp8Linear : uint8_t { qkv, output, up, down };
inline constexpr int kFp8Linears = 4;
constexpr int fp8_slot(int64_t layer, Fp8Linear which) {
  return static_cast<int>(layer) * kFp8Linears + static_cast<int>(which);
}

/// The name that checkpoints have for what delayed scaling remembers.
inline constexpr const char* kFp8History = "optimizer/fp8/amax_history";

/// One operand of a product, before it is rounded. `turned`: the product takes its transpose.
struct Fp8Source {
  Tensor of;
  bool turned = false;
  Fp8Role role = Fp8Role::input;
};

/// What a rank keeps for it.
class Fp8State {
 public:
  Fp8State(const Fp8Settings& settings, Stream& compute, Memory& memory, int64_t layers);
  /// out = a b^T of the rounded operands, as matmul_fp8.
  void multiply(Step& step, int slot, Tensor out, const Fp8Source& a, const Fp8Source& b,
                const MatmulArgs& args);
  /// Before the first product of a step, and after a state was loaded.
  void begin_step(Stream& compute);
  /// All ranks agree on what was noted, and the next step's steps follow from it.
  void finish_step(Stream& compute, const Group& world);
  Tensor history() const { return history_; }  ///< (slots * roles, length) f32; undefined unless delayed

 private:
  DType format(Fp8Role role) const;
  Tensor element(Tensor table, int slot, Fp8Role role) const;
  /// Steps of both operands, from what they hold: (2).
  Tensor current_steps(Step& step, const Fp8Source& a, const Fp8Source& b) const;
  Fp8Operand round(Step& step, int slot, const Fp8Source& source, Tensor steps, int which) const;
  Fp8StepArgs step_args() const;
  Fp8Settings settings_;
  Tensor steps_, amax_, history_;  // of every slot and role, the same on all ranks
};

}  // namespace ltrain
