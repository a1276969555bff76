// The parameters of a rank, and what data parallelism and ZeRO do with them.
//
// The store owns its parts and passes on what they are asked:
//   parameter_layout.h       declaration, buckets, and the slices of a bucket that a rank keeps
//   weights.h                weights of the step: gathered and released by layers, or whole
//   gradient_reducer.h       gradients, summed as backward completes them
//   compressed_all_reduce.h  sums in 8 bits or in one, with error feedback
//   optimizer_states.h       master weights and moments, on the device or offloaded
//   element_updates.h        updates of one element at a time, by windows (state_windows.h)
//   bucket_updates.h         the update of all buckets, and what optimizers may ask (optim/update_context.h)
//   weight_average.h         the average of weights
//   sparse_masks.h           2:4 sparsity
// What a rank keeps of the others' pieces of a bucket is a ShardingPolicy, a stage of ZeRO. The gradient norm
// is summed over what a rank owns and a checkpoint is written from it, so that all stages give the same bits.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor/arena.h"
#include "kernels/tensor/stream.h"
#include "parallel/mesh/groups.h"
#include "parallel/mesh/sharding_policy.h"
#include "parallel/optim/optimizer.h"
#include "parallel/optim/parameter_spec.h"
#include "parallel/zero/grad_buffer.h"
#include "parallel/zero/offload_access.h"
#include "parallel/zero/owned_state.h"

namespace ltrain {

class OffloadedWeights;
class ParameterLayout;
class Weights;
struct StoreContext;

class ParameterStore {
 public:
  ParameterStore();
  ~ParameterStore();
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Declares a unit; returns the id of its first parameter, the others follow. All have one number of
  /// columns, and lie on the tensor axis in one way, when they are to be used as one matrix.
  int add(std::vector<ParameterSpec> unit);
  /// What is declared from here on is gathered as one by ZeRO-3 and completed apart from what came before.
  /// `segment`: the same number for the same layer on every rank, however the model is cut into stages.
  void begin_segment(int segment);

  struct Layout {
    PrecisionPolicy precision;
    ShardingPolicy sharding;
    int64_t bucket_elements = 4 << 20;  ///< a bucket is closed when it reaches this
    bool for_training = true;           ///< false: no gradients, no optimizer state
    OptimizerSettings optimizer = {};
    OffloadSettings offload = {};
    OffloadMemory* slow = nullptr;            ///< with offload.fraction above 0
    OffloadMemory* offload_params = nullptr;  ///< with offload.params above 0
    bool reduce_bf16 = false;                 ///< gradients are rounded to bf16 to be summed, on each level
    bool reduce_int8 = false;                 ///< likewise to 8 bits, with error feedback; ZeRO-0 and 1
    double ema_decay = 0;                     ///< of an average of the weights; 0: none
    uint64_t seed = 0;                        ///< of stochastic rounding
  };
  /// Carves everything out of `memory`.
  void allocate(Stream& compute, Memory& memory, const Groups& groups, const Layout& layout);

  /// That the parameters are worked on.
  Stream& stream() const;

  /// Everything to zero, padding included. On meta nothing.
  void clear();
  /// Fills parameters and optimizer state from the counter generator: a function of (seed, name, element).
  void initialize(uint64_t seed);

  const OptimizerSettings& optimizer() const;
  int count() const;
  const ParameterSpec& spec(int id) const;
  int64_t elements() const;               ///< of all that this rank has, without padding
  int find(std::string_view name) const;  ///< the first of that name; -1 if there is none

  /// The parameter, or `n` of one unit as one matrix (sum of rows, columns). With ZeRO-3 only while its
  /// segment is in use.
  Tensor value(int id, int n = 1) const;
  /// The gradient as it lies in the bucket. With ZeRO-2 and 3 only between a contribution and its reduction.
  Tensor grad(int id, int n = 1) const;

  // ---- the step ----
  /// `micros` backward passes of step `step`, from 1, follow; every unit that trains gets a contribution from
  /// each.
  void begin_step(int64_t micros, int64_t step);
  /// Before the first layer of a step, or of its second pass. ZeRO-1 and 2: what others updated in the step
  /// before is on its way. ZeRO-3 that keeps what it gathers: all weights are, until finish_gradients. Each
  /// layer waits for its own. `captured`: as the begin of captured work, which does so each time it is made
  /// again.
  void gather_weights(bool captured = false);
  /// Before what is no step reads weights: with ZeRO-1 and 2 those that others updated come.
  void complete_weights();
  /// It has gradients: it is not frozen.
  bool trains(int id) const;
  /// ZeRO-3: gathers a segment, waits for it, and starts to gather `next` (-1: none). After gather_weights:
  /// waits for what that gathers of it. Else nothing.
  void gather_segment(int segment, int next = -1);
  /// On meta: seconds waited so far for what gather_weights gathers.
  double waited_for_updates() const;
  /// ZeRO-3: gives a segment's values back, unless they are kept for the step. Else nothing.
  void release_segment(int segment);
  /// Where to write the next contribution to a unit's gradient.
  GradBuffer accumulate(int id, int n = 1);
  /// A backward has made its last contribution of one micro-batch to the unit that begins with `id`.
  void grad_ready(int id);
  /// In the place of all contributions of so many micro-batches and their grad_ready: captured work made
  /// them, and the reductions after the last, again; `gathered`: and gather_weights. Not with ZeRO-2 and 3.
  void replayed(int64_t micros, bool gathered = false);
  /// At the end of work that is recorded, and has the last backward: what of reductions is not enqueued yet.
  void end_reductions();
  /// After the last backward: waits for the reductions.
  void finish_gradients();
  /// Adds the squares of the gradients that this rank owns to the element of their segment: (segments) f64.
  /// What several ranks have the first of them adds. A sum for each segment, so that it does not matter which
  /// rank has which.
  void add_grad_squares(Tensor squares);
  /// The pass that the step has before its own (Sophia): after begin_step, begin_estimate, then
  /// gather_weights; after finish_gradients, end_estimate, which puts moved weights back, bit for bit.
  /// `labels`: whose mean loss the gradients are of, `loss_scale` times.
  EstimatePass estimate(int64_t step) const;
  void begin_estimate(EstimatePass pass);
  void end_estimate(const AdamwArgs& step, double labels, double loss_scale);
  /// One optimizer step on what this rank owns. What others own comes with the next step, or with
  /// complete_weights.
  void update(const AdamwArgs& args);

  // ---- the average of weights ----
  /// Puts the average in the place of the weights (for an evaluation), or them back, bit for bit.
  void use_ema_weights(bool shown);
  /// The average begins with the weights as they are.
  void start_average();

  // ---- state ----
  /// Bytes in offload memory: of states, of parameters.
  int64_t offload_bytes() const;
  int64_t offloaded_bytes() const;
  /// Waits until what lies in offload memory is all there.
  void wait_offloaded();
  /// After kOffloadTouch bytes of it were touched.
  void release_offloaded();
  std::vector<OwnedPiece> owned_pieces() const;   ///< what this rank writes to a checkpoint
  std::vector<OwnedPiece> stored_pieces() const;  ///< what this rank keeps states of, and must read from one
  /// What a parameter would have with these settings; asked before allocate().
  ParameterRule rule_with(int id, const OptimizerSettings& optimizer) const;
  /// Of whole tensors: those that this rank writes, or all, which it must read.
  std::vector<WholeState> whole_states(bool owned) const;
  /// Those that this rank writes, or all that it has.
  std::vector<RoundingError> rounding_errors(bool owned) const;
  void keep(std::string name, Tensor t);
  /// Likewise.
  std::vector<RegisteredBuffer> kept(bool owned) const;
  /// Moments of 8 bits are written and read as floats: held, in host memory outside the arena, from open to
  /// close, which takes them over when `changed`.
  void prefetch_states();
  void offload_states(bool changed);
  /// Of the host, meanwhile; `own_memory`: the device has memory of its own.
  int64_t open_state_bytes(bool own_memory) const;
  /// The values as this rank holds them between steps, bucket by bucket: whole, or its pieces. Faults are put
  /// there.
  std::vector<Tensor> held_values() const;
  /// After stored_pieces were filled: low-precision copies, and the pieces of other ranks.
  void publish_loaded();

 private:
  struct Training;
  std::vector<OwnedPiece> pieces(bool owned) const;

  std::unique_ptr<ParameterLayout> parameters_;
  int segment_ = 0;
  Layout settings_;
  OffloadAccess offload_;
  std::vector<RegisteredBuffer> kept_;
  // After allocate().
  std::unique_ptr<StoreContext> context_;
  std::unique_ptr<OffloadedWeights> offloaded_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Training> training_;  // Layout::for_training
};

}  // namespace ltrain
