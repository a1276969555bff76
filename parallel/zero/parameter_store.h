// The parameters of a rank, in flat buckets, and what data parallelism and ZeRO do with them.
//
// Layers declare units: parameters that are contiguous in memory, so that q, k and v are three named tensors
// and one matrix. Units fill buckets in the reverse of their declaration, the order in which backward
// finishes them. A bucket of n elements is cut into one piece for each rank of the group `shard` (all that
// have the same parameters, or those of them on a node). What a rank keeps of the others' pieces is the stage
// of ZeRO (arXiv:1910.02054):
//   0: everything;  1: values and gradients, optimizer state of its piece alone;
//   2: values; gradients are reduced into its piece after every micro-batch;
//   3: nothing: values are gathered before a layer runs and given back after it.
// Gradients have one level or two. With one, `shard` has all ranks and the second level is a group of one.
// With two, a piece is summed inside, then across (with ZeRO-2 and 3 once a step, else once a bucket), and
// without ZeRO gathered inside: hybrid sharding (arXiv:2304.11277, 3.2.2) and the two-level all-reduce.
// Every piece is cut again over the ranks of `replicate`: that is what a rank owns. Always the gradient norm
// is summed over what is owned and a checkpoint is written from it, so that all stages give the same bits.
//
// How a parameter lies on the other axes is a property of its declaration (ParameterSpec); reduction, norm,
// clipping, update and checkpoints read it from there.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/optimizer/adamw_8bit.h"
#include "kernels/optimizer/error_feedback.h"
#include "kernels/storage/offload.h"
#include "kernels/tensor/arena.h"
#include "kernels/tensor/stream.h"
#include "parallel/mesh/groups.h"
#include "parallel/mesh/sharding_policy.h"
#include "parallel/optim/optimizer.h"
#include "parallel/optim/parameter_spec.h"
#include "parallel/optim/tensor_sums.h"

namespace ltrain {

/// An optimizer state by the name that checkpoints have for it: "exp_avg".
struct NamedState {
  std::string_view name;
  Tensor tensor;
};

/// Consecutive elements of one parameter that a rank owns, and where its states lie.
struct OwnedPiece {
  int id = 0;
  Slice slice;  ///< of the named tensor
  Tensor master;
  std::vector<NamedState>
      moments;  ///< of every element; those of 8 bits only between open and offload_states
  Tensor grad;  ///< after finish_gradients, until the next step; some optimizers leave their direction there
};

/// What lies in offload memory (kernels/storage/offload.h).
struct OffloadSettings {
  double fraction = 0;                ///< of the elements of each bucket: their states
  int64_t window = int64_t{1} << 18;  ///< elements that are on their way at once
  double params = 0;                  ///< ZeRO-3: of the buckets, evenly among them: their values
};

/// What rounding has left over of the sums of a parameter in a compressed all-reduce, for the next time: of
/// what this rank sends, or of what it sums for all.
struct RoundingError {
  int id = 0;
  Slice slice;  ///< of the named tensor
  bool sent = false;
  int rank = 0, ranks = 1;  ///< sent: of the group that sums
  Tensor tensor;
};

/// A tensor of the model that is no parameter, whole on every rank: saved and loaded with them.
struct RegisteredBuffer {
  std::string name;
  Tensor tensor;
};

/// Where a backward writes a gradient, and whether it adds to what is there.
struct GradBuffer {
  Tensor tensor;
  bool accumulate = false;
};

inline constexpr Axis kEachGradientAxis[] = {Axis::data, Axis::context, Axis::replica, Axis::expert};

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
  void begin_segment(int segment) { segment_ = segment; }

  struct Layout {
    PrecisionPolicy precision;
    ShardingPolicy sharding;
    int64_t bucket_elements = 4 << 20;  ///< a bucket is closed when it reaches this
    bool for_training = true;           ///< false: no gradients, no optimizer state
    OptimizerSettings optimizer = {};
    OffloadSettings offload = {};
    OffloadMemory* slow = nullptr;            ///< with offload.fraction above 0
    OffloadMemory* offload_params = nullptr;  ///< with offload.params above 0
    bool reduce_bf16 = false;                 ///< gradients are rounded to bf16 to be summed, on one level
    bool reduce_int8 = false;                 ///< likewise to 8 bits, with error feedback; ZeRO-0 and 1
    double ema_decay = 0;                     ///< of an average of the weights; 0: none
    uint64_t seed = 0;                        ///< of stochastic rounding
  };
  /// Carves everything out of `memory`.
  void allocate(Stream& compute, Memory& memory, const Groups& groups, const Layout& layout);

  /// That the parameters are worked on.
  Stream& stream() const { return *compute_; }

  /// Everything to zero, padding included. On meta nothing.
  void clear();
  /// Fills parameters and optimizer state from the counter generator: a function of (seed, name, element).
  void initialize(uint64_t seed);

  const OptimizerSettings& optimizer() const { return layout_.optimizer; }
  int count() const { return static_cast<int>(parameters_.size()); }
  const ParameterSpec& spec(int id) const { return parameters_[id].spec; }
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
  /// It has gradients: it is not frozen.
  bool trains(int id) const { return parameters_[id].rule.trains(); }
  /// ZeRO-3: gathers a segment, waits for it, and starts to gather `next` (-1: none). Else nothing.
  void gather_segment(int segment, int next = -1);
  /// ZeRO-3: gives a segment's values back. Else nothing.
  void release_segment(int segment);
  /// Where to write the next contribution to a unit's gradient.
  GradBuffer accumulate(int id, int n = 1);
  /// A backward has made its last contribution of one micro-batch to the unit that begins with `id`.
  void grad_ready(int id);
  /// In the place of all contributions of so many micro-batches and their grad_ready: captured work made
  /// them, and the reductions after the last, again. Not with ZeRO-2 and 3.
  void replayed(int64_t micros);
  /// At the end of work that is recorded, and has the last backward: what of reductions is not enqueued yet.
  void end_reductions();
  /// After the last backward: waits for the reductions.
  void finish_gradients();
  /// Adds the squares of the gradients that this rank owns to the element of their segment: (segments) f64.
  /// What several ranks have the first of them adds. A sum for each segment, so that it does not matter which
  /// rank has which.
  void add_grad_squares(Tensor squares);
  /// The step has a pass before it, with other values than its own (Sophia): after begin_step, shift_values;
  /// after finish_gradients, keep_shifted_gradients, which puts the values back, bit for bit.
  bool estimates(int64_t step) const;
  void shift_values();
  void keep_shifted_gradients();
  /// One optimizer step on what this rank owns, then the gather of what others own.
  void update(const AdamwArgs& args);

  // ---- the average of weights ----
  /// Puts the average in the place of the weights (for an evaluation), or them back, bit for bit.
  void use_ema_weights(bool shown);
  /// The average begins with the weights as they are.
  void start_average();

  // ---- state ----
  /// Bytes in offload memory: of states, of parameters.
  int64_t offload_bytes() const { return offload_bytes_; }
  int64_t offloaded_bytes() const { return offloaded_bytes_; }
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
  void keep(std::string name, Tensor t) { kept_.push_back({std::move(name), t}); }
  /// Likewise.
  std::vector<RegisteredBuffer> kept(bool owned) const;
  /// Moments of 8 bits are written and read as floats: held, in host memory outside the arena, from open to
  /// close, which takes them over when `changed`.
  void prefetch_states();
  void offload_states(bool changed);
  int64_t open_state_bytes() const;
  /// The values as this rank holds them between steps, bucket by bucket: whole, or its pieces. Faults are put
  /// there.
  std::vector<Tensor> held_values() const;
  /// After stored_pieces were filled: low-precision copies, and the pieces of other ranks.
  void publish_loaded();

 private:
  struct Parameter {
    ParameterSpec spec;
    ParameterRule rule;
    int unit = 0, bucket = 0;
    int64_t offset = 0;   // in the bucket
    bool sparse = false;  // 2:4 sparse (sparsity.cpp)
  };
  struct Unit {
    int first = 0, count = 0, segment = 0, bucket = 0;
    bool touched = false;  // holds a contribution
    bool adding = false;   // `wide` holds contributions
    Tensor wide;           // gradients of 16-bit types: where those of a micro-batch are added up in f32
    TensorRecord *value_record = nullptr, *grad_record = nullptr;  // meta: how the unit lies
  };
  /// What the units of a bucket have in common.
  struct Kind {
    AxisSet cut, sum;  // of the axes that have several ranks
    bool copied = false, tied = false;
    ParameterRule rule;   // what its units differ in within the bucket left out
    bool expert = false;  // cut over ranks that see different tokens
    bool operator==(const Kind&) const = default;
  };
  struct Bucket {
    std::vector<int> units;
    Kind kind;
    int segment = 0;
    int64_t used = 0, padded = 0;
    int64_t piece = 0, own = 0;  // elements of a rank of `shard`; of it and one of `replicate`
    Tensor value;                // padded; with ZeRO-3 only while in use
    Tensor value_piece;          // ZeRO-3; in offload memory when offloaded
    int64_t offloaded = -1;      // where its values lie in offload memory; -1: they do not
    Tensor fetched;              // from there, on its way to all ranks
    Tensor grad;                 // padded; with ZeRO-2 and 3 only during a backward
    Tensor grad_piece;           // ZeRO-2 and 3
    Tensor master;
    std::vector<Tensor> moments;   // as Optimizer::element_states
    Tensor scratch;                // Optimizer::element_scratch
    int64_t resident = 0;          // elements whose states (master, moments) the device keeps, the first ones
    std::vector<int64_t> slow;     // where those of the others begin in offload memory, by state
    Tensor average;                // of weights, for evaluation
    CodedMoments coded;            // Optimizer::coded_states, in their place
    Tensor sent_error, sum_error;  // of compressed all-reduce: padded; of the piece
    std::vector<float> open;       // its moments, between prefetch_states and offload_states
    int64_t pending = 0;           // contributions until the next reduction
    int64_t reductions = 0;        // ZeRO-2 and 3: into the piece, in this step
    Event done;                    // of the reduction, or of the gather in flight
    Event summed;                  // of the second level
    bool gathering = false;
  };
  struct Window {  // what comes from offload memory and goes back together
    int bucket;
    int64_t from, n;  // in the bucket
    bool states;      // they come; the values do where the bucket's are offloaded
  };
  struct Slot {                  // of the ring
    std::vector<Tensor> states;  // master if there is one, moments
    Tensor values;
    Event fetched, values_fetched;
  };
  struct Pending {  // a reduction under way into a bucket's piece
    int bucket;
    Tensor grad;
    Event done;
  };

  // parameter_store.cpp: declaration, memory, state
  void fill_buckets();
  int64_t piece_begin(const Bucket& b) const;
  int64_t own_begin(const Bucket& b) const;
  int64_t stored_begin(const Bucket& b) const;
  int64_t stored_count(const Bucket& b) const;
  std::vector<OwnedPiece> pieces(bool owned) const;
  Tensor joined_view(Tensor flat, TensorRecord* record, int id, int n) const;
  AxisSet sharding_axes(const Kind& kind) const;  // those that pieces are cut over
  // Ranks that have the same of a bucket as this one: of the first and the second level.
  const Group& shard_group(const Bucket& b) const {
    return b.kind.expert ? groups_->expert_shard : groups_->shard;
  }
  const Group& replicate_group(const Bucket& b) const {
    return b.kind.expert ? groups_->expert_replicate : groups_->replicate;
  }
  void place_bucket(const Bucket& b, const Tensor& t, bool sharded) const;
  void place_unit(TensorRecord& unit, AxisSet axes, Placement p) const;
  Kind kind_of(const ParameterSpec& spec) const;
  bool first_copy(const Bucket& b) const;  // this rank's copy counts for norm and checkpoint
  std::vector<NamedState> moments_at(const Bucket& b, int64_t from, int64_t n) const;
  void choose_rules();
  // update.cpp: elements [from, from + n) of a bucket, of which this rank has states
  Elements range(const Bucket& b, int64_t from, int64_t n) const;
  std::vector<int> members(const Bucket& b) const;  // parameters in the order of their elements
  /// Calls f(parameter, from, n) for what of each lies in [begin, begin + count) of the bucket.
  template <class F>
  void each_parameter(const Bucket& b, int64_t begin, int64_t count, F f);
  AdamwArgs args_of(const ParameterRule& r, const AdamwArgs& step) const;
  bool moves(const Bucket& b) const;  // in this step
  bool updates_elements(const Bucket& b) const;
  bool sums_gradients(const Bucket& b) const;
  bool owns_whole(const ParameterSpec& spec) const;  // this rank writes states of the whole tensor
  void make_updates();
  void clear_updates();
  void add_own_squares(const Bucket& b, const Tensor& total);
  // update_windows.cpp: states of an element are counted master first, where there is one
  int state_count(const Bucket& b) const;
  Tensor resident_state(const Bucket& b, int state) const;
  Tensor state_at(const Bucket& b, int state, int64_t at, int64_t n) const;
  int64_t offload_offset(const Bucket& b, int state, int64_t at) const;
  bool widens_states() const;
  bool widens_gradients() const { return layout_.precision.grad != layout_.precision.wide(); }
  GradBuffer accumulate_wide(Unit& u, int n);
  void allocate_windows();
  void list_windows(int bucket);
  void fetch_window(size_t index);
  void fetch_ahead();
  void pass_windows(const Bucket& b);
  void update_range(Bucket& b, int64_t from, int64_t n, const Elements& all, const AdamwArgs& step);
  void update_stored(Bucket& b, int64_t from, int64_t n, const Elements& stored, const AdamwArgs& step);
  void update_elements(Bucket& b, const AdamwArgs& step);
  void round_parameters(Bucket& b, int64_t from, int64_t n, Tensor to, Tensor wide, int64_t step);
  void average(Bucket& b, int64_t from, Tensor master, int64_t step);
  void copy_master(const Bucket& b, Tensor to);
  void in_parts(int64_t elements, const std::function<void(int64_t from, int64_t n)>& f);
  Tensor held(const Bucket& b) const;  // what the optimizer has of the values
  void wait_for_values();
  void require_values(std::string_view when) const;
  void gather_values(Bucket& b);
  bool adds(const Bucket& b) const;  // this rank's copy counts in sums over tensors
  // compressed_all_reduce.cpp: compressed all-reduce
  Code code_of(const Bucket& b) const;  // of what errors are kept of
  bool is_compressed(const Bucket& b) const;
  /// Gradients in 8 bits, which both stages have the same of, and the same errors.
  bool rounds_tied(const Bucket& b) const { return b.kind.tied && layout_.reduce_int8 && is_compressed(b); }
  void allocate_errors(Bucket& b, const std::string& name);
  void allocate_codes();
  void compressed_all_reduce(Bucket& b, Tensor values, double factor, Tensor where, bool all);
  // sparsity.cpp
  void choose_sparse();
  template <class F>
  void each_sparse(Bucket& b, F f);
  void sparsify();
  void mask_gradients();
  // gradients.cpp: the step
  void reduce(int bucket);
  void collect(Bucket& b);
  bool alone(const Bucket& b) const;
  void place_as_part(Bucket& b);
  void clear_padding(Bucket& b);
  void settle(size_t keep);
  void sum_replicas(Bucket& b, Tensor piece, Event ready);
  void gather_reduced();
  void gather(int bucket);
  // values_offloaded.cpp: values in offload memory
  bool leaves(const Bucket& b, int64_t& all, int64_t& offloaded) const;
  void lay_out_offloaded();
  void fetch_values(Bucket& b, const Tensor& to);
  Tensor like_values(const Bucket& b, Tensor t) const;

  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::vector<Bucket> buckets_;
  std::vector<Pending> pending_;
  std::vector<RegisteredBuffer> kept_;
  class Updates;
  std::unique_ptr<Updates> updates_;
  Tensor codes_,
      received_;  // u8, of the bucket that is summed in a compressed all-reduce; the stream of sums has them
  Tensor rounded_;               // gradients of the bucket that is summed, in bf16; the stream of sums has it
  std::vector<Window> windows_;  // of all buckets, in the order of updates
  std::vector<Slot> ring_;
  std::vector<Tensor> wide_;  // states in what is computed in, one window
  size_t next_window_ = 0;
  bool fetched_ahead_ = false;
  int64_t offload_bytes_ = 0, offloaded_bytes_ = 0;
  int summed_ = -1;  // two levels without ZeRO: bucket whose sum is on its way and not gathered
  int segment_ = 0;
  int64_t micros_ = 1, step_ = 1;
  bool sparse_ = false;  // the choice of 2:4 sparse was made, or found to be made
  Layout layout_;
  Stream* compute_ = nullptr;
  Memory* memory_ = nullptr;
  const Groups* groups_ = nullptr;
};

template <class F>
void ParameterStore::each_parameter(const Bucket& b, int64_t begin, int64_t count, F f) {
  for (int id : members(b)) {
    const Parameter& p = parameters_[id];
    const int64_t from = std::max(begin, p.offset),
                  to = std::min(begin + count, p.offset + p.spec.slice.elements());
    if (from < to) f(p, from, to - from);
  }
}

}  // namespace ltrain
