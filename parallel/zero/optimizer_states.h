// The states that an optimizer keeps of every element: master weights and moments, of what this rank stores
// of each bucket. The device keeps the first elements of a bucket, offload memory those behind them.
//
// States of a bucket are counted master first, where there is one. `at` counts the elements that this rank
// has states of in the bucket.
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
  /// `fraction`: of the elements of each bucket whose updates look at one at a time, that leave the device.
  OptimizerStates(const StoreContext& context, const ParameterLayout& layout, const Weights& weights,
                  const OptimizerSettings& optimizer, double fraction, OffloadAccess& access);

  /// Of a bucket, in their order; when all have theirs, what lies in offload memory.
  void allocate_master(const Bucket& b);
  void allocate_moments(const Bucket& b);
  void reserve_offloaded();

  int count(const Bucket& b) const;
  int64_t resident(const Bucket& b) const { return of(b).resident; }
  /// Where element `at` lies, `n` of them: all on the device, or none.
  Tensor state(const Bucket& b, int state, int64_t at, int64_t n) const;
  DType type(const Bucket& b, int state) const { return on_device(b, state).dtype; }
  size_t moments(const Bucket& b) const { return of(b).moments.size(); }
  std::vector<NamedState> named(const Bucket& b, int64_t at, int64_t n) const;
  /// The weights of the optimizer.
  Tensor master(const Bucket& b, int64_t at, int64_t n) const;
  void copy_master(const Bucket& b, const Tensor& to) const;
  /// Those on the device of elements [from, from + n) of the bucket: e.master, e.low, e.states.
  void show(const Bucket& b, int64_t from, int64_t n, Elements& e) const;
  /// All of a bucket's, where they are coded: as kernels take them.
  const CodedMoments& coded(const Bucket& b) const { return of(b).coded; }
  bool is_coded(const Bucket& b) const { return of(b).coded.first.defined(); }
  /// Optimizer::element_scratch.
  const Tensor& scratch(const Bucket& b) const { return of(b).scratch; }

  /// Enqueue on the stream of offload memory: what lies there, to `t` or from it.
  void fetch(const Bucket& b, int state, int64_t at, const Tensor& t) const;
  void store(const Bucket& b, int state, int64_t at, const Tensor& t) const;
  Stream& stream() const { return access_.states->stream(); }

  /// Moments of 8 bits as floats, in host memory outside the arena, from open to close, which takes them over
  /// when `changed`.
  void open();
  void close(bool changed);
  /// `own_memory`: the device's is not the host's, so that the codes of a bucket lie there for a while, too.
  int64_t open_bytes(bool own_memory) const;

  /// All of them, those in offload memory too: for set-up.
  void each_tensor(const std::function<void(const Tensor&)>& f) const;

 private:
  struct State {
    Tensor master;
    std::vector<Tensor> moments;  // as Optimizer::element_states
    Tensor scratch;
    CodedMoments coded;         // in the place of moments
    int64_t resident = 0;       // elements whose states the device keeps, the first ones
    std::vector<int64_t> slow;  // where those of the others begin in offload memory, by state
    std::vector<float> open;    // coded ones, between open and close
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
  std::vector<State> states_;  // by bucket
};

}  // namespace ltrain
