// Parameters of a rank under data parallelism and ZeRO.
//
// The store owns these parts and delegates to them:
//   parameter_layout.h       declaration, buckets, and the slices of a bucket that a rank keeps
//   weights.h                weights of the step: gathered and released by layers, or full
//   gradient_reducer.h       gradients, summed as backward completes them
//   compressed_all_reduce.h  sums in 8 bits or in one, with error feedback
//   optimizer_states.h       master weights and moments, on the device or offloaded
//   element_updates.h        updates of one element at a time, by windows (state_windows.h)
//   bucket_updates.h         the update of all buckets, and the interface of optimizers
//   (optim/update_context.h)
//   weight_average.h         EMA of the weights
//   outer_optimizer.h        the outer update of DiLoCo
//   sparse_masks.h           sparse matrices
// A ShardingPolicy, the ZeRO stage, says which pieces of a bucket a rank keeps. The gradient norm is summed
// over the elements that a rank owns, and a checkpoint is written from them, so that all stages give the same
// bits.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/optimizer/onebit/error_feedback.h"
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

  /// Declares a unit and returns the id of its first parameter; the others follow. To be used as one matrix,
  /// all parameters must have the same number of columns and the same placement on the tensor axis.
  int add(std::vector<ParameterSpec> unit);
  /// Starts a segment: parameters declared from here on are gathered together by ZeRO-3, and completed
  /// separately from earlier ones. `segment`: the same number for the same layer on every rank, for any
  /// division into stages. `layer`: number of the layer in its pipeline stage; -1: not a layer.
  void begin_segment(int segment, int64_t layer = -1);

  struct Layout {
    PrecisionPolicy precision;
    ShardingPolicy sharding;
    int64_t bucket_elements = 4 << 20;  ///< a bucket is closed when it reaches this
    bool for_training = true;           ///< false: no gradients, no optimizer state
    OptimizerSettings optimizer = {};
    OffloadSettings offload = {};
    OffloadMemory* offload_states = nullptr;  ///< with offload.fraction above 0
    OffloadMemory* offload_params = nullptr;  ///< with offload.params above 0
    bool reduce_bf16 = false;                 ///< gradients are rounded to bf16 before the sums of each level
    std::optional<Code> reduce_code =
        {};                ///< gradients are summed as codes, with error feedback; ZeRO-0 and 1
    double ema_decay = 0;  ///< decay of the EMA of the weights; 0: none
    uint64_t seed = 0;     ///< seed of stochastic rounding
  };
  /// Allocates everything from `memory`.
  void allocate(Stream& compute, Memory& memory, const Groups& groups, const Layout& layout);

  /// Stream on which parameters are updated.
  Stream& stream() const;

  /// Fills everything with zeros, padding included. No effect on meta.
  void clear();
  /// Initializes parameters and optimizer state: a function of (seed, name, element).
  void initialize(uint64_t seed);

  const OptimizerSettings& optimizer() const;
  const PrecisionPolicy& precision() const { return settings_.precision; }
  int count() const;
  const ParameterSpec& spec(int id) const;
  int64_t elements() const;               ///< elements of this rank, without padding
  int find(std::string_view name) const;  ///< first parameter with the name; -1: none

  /// The parameter, or `n` parameters of one unit as one matrix (sum of rows, columns). With ZeRO-3 only
  /// while its segment is gathered.
  Tensor value(int id, int n = 1) const;
  /// True if the parameter is held in NF4: it has nf4() and no value().
  bool is_nf4(int id) const;
  Nf4Matrix nf4(int id, int n = 1) const;
  /// True if matmuls of this step skip the zeros of `n` parameters of a unit (SparsitySettings::skip_zeros).
  bool skips_zeros(int id, int n = 1) const;
  /// Share of nonzeros of a sparse matrix (SparsitySettings::kept_share).
  double kept_share() const;
  /// True if weight gradients of this step have a sparse output gradient
  /// (SparsitySettings::gradient_estimator).
  bool prunes_gradient(int id) const;
  /// View of the gradient in the bucket. With ZeRO-2 and 3 only between a contribution and its reduction.
  Tensor grad(int id, int n = 1) const;

  // ---- the step ----
  /// Starts step `step`, numbered from 1, with `micros` backward passes; every unit that trains gets a
  /// contribution from each.
  void begin_step(int64_t micros, int64_t step);
  /// Called before the first layer of a step, or of its second pass. Starts gathers of weights, and each
  /// layer waits for its own: with ZeRO-1 and 2, of the pieces that others updated in the last step; with
  /// ZeRO-3 that keeps gathered weights, of all weights until finish_gradients. `captured`: begins captured
  /// work, which gathers again in each run.
  void gather_weights(bool captured = false);
  /// Called before weights are read outside a step: with ZeRO-1 and 2, gathers the pieces that others
  /// updated.
  void complete_weights();
  /// True if it has gradients: it is not frozen.
  bool trains(int id) const;
  /// ZeRO-3: gathers a segment, waits for it, and starts to gather `next` (-1: none). After gather_weights:
  /// waits for its part of that. Otherwise no effect.
  void gather_segment(int segment, int next = -1);
  /// On meta: seconds waited so far for gathers of gather_weights.
  double waited_for_updates() const;
  /// ZeRO-3: releases a segment's weights, unless they are kept for the step. Otherwise no effect.
  void release_segment(int segment);
  /// Buffer for the next contribution to a unit's gradient.
  GradBuffer accumulate(int id, int n = 1);
  /// Called when a backward has made its last contribution of one micro-batch to the unit that begins with
  /// `id`.
  void grad_ready(int id);
  /// Replaces all contributions of `micros` micro-batches and their grad_ready, if captured work made them,
  /// and the reductions after the last, again. `gathered`: captured work also did gather_weights. Not with
  /// ZeRO-2 and 3.
  void replayed(int64_t micros, bool gathered = false);
  /// Called at the end of captured work with the last backward: enqueues the rest of the reductions.
  void end_reductions();
  /// Called after the last backward: waits for the reductions.
  void finish_gradients();
  /// After finish_gradients: the gradients from which this rank updates its states, bucket by bucket.
  std::vector<Tensor> stored_gradients() const;
  /// Adds the squares of the gradients that this rank owns to the element of their segment: squares
  /// (segments) f64. The first of several ranks with the same gradients adds them. With one sum for each
  /// segment, the result does not depend on which rank has which segment.
  void add_grad_squares(Tensor squares);
  /// SparseMasks::add_flips.
  void add_mask_flips(Tensor sums);
  /// Extra pass before a step's own (Sophia): begin_step, begin_estimate, then gather_weights; after
  /// finish_gradients, end_estimate, which restores moved weights, bit for bit. `labels`: number of labels of
  /// the mean loss of the gradients, which are scaled by `loss_scale`.
  EstimatePass estimate(int64_t step) const;
  void begin_estimate(EstimatePass pass);
  void end_estimate(const OptimizerStep& step, double labels, double loss_scale);
  /// OffloadSettings::skip_untouched: `tokens` that chose each expert, by layer, for the next update.
  void skip_untouched(std::vector<std::vector<double>> tokens);
  /// Bytes of states and weights that updates have fetched and written back so far on this rank.
  int64_t moved_bytes() const;
  /// One optimizer step on the elements that this rank owns. Pieces of others arrive with the next step, or
  /// with complete_weights.
  void update(const OptimizerStep& args);

  // ---- EMA of the weights ----
  /// Swaps the EMA, or the weights that sites share, in for the weights (for an evaluation), or the weights
  /// back, bit for bit.
  void use_ema_weights(bool shown);
  /// Initializes the EMA with the current weights.
  void start_average();

  /// DiLoCo, after the update of step `step`: averages the changes of weights that are due over sites, and
  /// applies the outer optimizer. Collective over sites. Without fragments, delay and merge all sites have
  /// the same weights after every DilocoSettings::inner_steps steps.
  void synchronize_sites(int64_t step);
  /// DiLoCo, after a load: goes on after step `step`. `in_flight`: changes on their way were loaded.
  void resume_sites(int64_t step, bool in_flight);

  // ---- state ----
  int site() const;  ///< DiLoCo: this rank's site; else 0
  /// Bytes in offload memory: of states, and of parameters.
  int64_t offload_bytes() const;
  int64_t offloaded_bytes() const;
  /// Waits for all transfers to offload memory.
  void wait_offloaded();
  /// Called after kOffloadTouch bytes of it were touched.
  void release_offloaded();
  std::vector<OwnedPiece> owned_pieces() const;  ///< pieces that this rank writes to a checkpoint
  /// pieces with states on this rank, which it reads from a checkpoint
  std::vector<OwnedPiece> stored_pieces() const;
  /// Rule of a parameter under these settings; may be called before allocate().
  ParameterRule rule_with(int id, const OptimizerSettings& optimizer) const;
  /// States of full tensors: those that this rank writes, or all, which it reads.
  std::vector<WholeState> whole_states(bool owned) const;
  /// Errors that this rank writes, or all that it has.
  std::vector<RoundingError> rounding_errors(bool owned) const;
  void keep(std::string name, Tensor t);
  /// Registered buffers that this rank writes, or all that it has.
  std::vector<RegisteredBuffer> kept(bool owned) const;
  /// 8-bit moments are written and read as floats, in host memory outside the arena between these two calls.
  /// offload_states() encodes them again if `changed`.
  void prefetch_states();
  void offload_states(bool changed);
  /// Host bytes for that; `own_memory`: the device has memory of its own.
  int64_t open_state_bytes(bool own_memory) const;
  /// Weights as this rank holds them between steps, bucket by bucket: full, or its pieces; of NF4 the
  /// magnitudes. Fault points corrupt them.
  std::vector<Tensor> held_values() const;
  /// Called after stored_pieces were filled: updates low-precision copies, and pieces of other ranks.
  /// `shares_weights`: the weights begin a round of DiLoCo; false if OwnedPiece::shared was filled, too.
  void publish_loaded(bool shares_weights = true);

 private:
  struct Training;
  std::vector<OwnedPiece> pieces(bool owned) const;
  void initialize_nf4(uint64_t seed) const;

  std::unique_ptr<ParameterLayout> parameters_;
  int segment_ = 0;
  int64_t layer_ = -1;
  Layout settings_;
  OffloadAccess offload_;
  std::vector<RegisteredBuffer> kept_;
  // Set by allocate().
  std::unique_ptr<StoreContext> context_;
  std::unique_ptr<OffloadedWeights> offloaded_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Training> training_;  // null unless Layout::for_training
};

}  // namespace ltrain
