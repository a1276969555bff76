// Optimizer states of each element: master weights and moments, for this rank's part of each bucket. The
// device keeps the first elements of a bucket, offload memory the rest.
//
// States of a bucket are numbered from 0, the master first if there is one. `at` counts this rank's elements
// of the bucket.
#pragma once
#include <vector>

#include "kernels/optimizer/adamw_8bit.h"
#include "parallel/optim/optimizer.h"
#include "parallel/zero/offload_access.h"
#include "parallel/zero/owned_state.h"
#include "parallel/zero/weights.h"

namespace ltrain {

class OptimizerStates {
 public:
  /// `fraction`: share of the elements of a bucket that leave the device, for optimizers that update one
  /// element at a time.
  OptimizerStates(const StoreContext& context, const ParameterLayout& layout, const Weights& weights,
                  const OptimizerSettings& optimizer, double fraction, OffloadAccess& access);

  /// Allocate a bucket, in the order of buckets; lay_out_offloaded() after the last one.
  void allocate_master(const Bucket& b);
  void allocate_moments(const Bucket& b);
  void lay_out_offloaded();

  int count(const Bucket& b) const;
  /// True if the bucket has master weights; frozen ones have only the step's weights. Quantized and masked
  /// weights have master weights in every precision.
  bool has_master(const Bucket& b) const {
    return (c_.precision.has_master() || b.kind.derived()) && b.kind.rule.trains();
  }
  int64_t resident(const Bucket& b) const { return of(b).resident; }
  /// View of `n` elements of a state from `at` on: all on the device, or all offloaded.
  Tensor state(const Bucket& b, int state, int64_t at, int64_t n) const;
  DType type(const Bucket& b, int state) const { return on_device(b, state).dtype; }
  size_t moments(const Bucket& b) const { return of(b).moments.size(); }
  std::vector<NamedState> named(const Bucket& b, int64_t at, int64_t n) const;
  /// Weights that the optimizer updates.
  Tensor master(const Bucket& b, int64_t at, int64_t n) const;
  void copy_master(const Bucket& b, const Tensor& to) const;
  /// All of this rank's weights of a bucket that is not offloaded.
  Tensor stored_master(const Bucket& b) const { return master(b, 0, layout_.stored_count(b)); }
  /// Sets e.master, e.low and e.states to the resident states of elements [from, from + n) of the bucket.
  /// Quantized or masked weights are not a copy of the master weights that an update could write: they have
  /// no e.low.
  void show(const Bucket& b, int64_t from, int64_t n, Elements& e) const;
  /// Coded moments of a bucket, for kernels.
  const CodedMoments& coded(const Bucket& b) const { return of(b).coded; }
  bool is_coded(const Bucket& b) const { return of(b).coded.first.defined(); }
  /// Optimizer::element_scratch.
  const Tensor& scratch(const Bucket& b) const { return of(b).scratch; }

  /// Enqueue on the stream of offload memory a transfer of offloaded states to `t` or back.
  void fetch(const Bucket& b, int state, int64_t at, const Tensor& t) const;
  void store(const Bucket& b, int state, int64_t at, const Tensor& t) const;
  Stream& stream() const { return access_.states->stream(); }

  /// 8-bit moments as floats, in host memory outside the arena, between open and close. close() encodes them
  /// again if `changed`.
  void open();
  void close(bool changed);
  /// `own_memory`: the device has memory of its own, so that a copy of a bucket's codes is counted, too.
  int64_t open_bytes(bool own_memory) const;

  /// Calls f with all states, offloaded ones included; for set-up.
  void each_tensor(const std::function<void(const Tensor&)>& f) const;

 private:
  struct State {
    Tensor master;
    std::vector<Tensor> moments;  // in the order of Optimizer::element_states
    Tensor scratch;
    CodedMoments coded;              // instead of moments
    int64_t resident = 0;            // number of first elements with states on the device
    std::vector<int64_t> offloaded;  // for each state: offset of the others in offload memory
    std::vector<float> open;         // decoded moments, between open and close
  };
  State& of(const Bucket& b) { return states_[static_cast<size_t>(b.index)]; }
  const State& of(const Bucket& b) const { return states_[static_cast<size_t>(b.index)]; }
  const Tensor& on_device(const Bucket& b, int state) const;
  int64_t offset(const Bucket& b, int state, int64_t at) const;
  Tensor make(const Bucket& b, const char* what, DType type, int64_t n, bool sharded) const;

  StoreContext c_;
  const ParameterLayout& layout_;
  const Weights& weights_;
  const OptimizerSettings& optimizer_;
  double fraction_;
  OffloadAccess& access_;
  std::vector<State> states_;  // indexed by bucket
};

}  // namespace ltrain
