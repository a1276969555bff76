// Services for a TensorUpdate: views of its parameters in the buckets, sums over ranks, weights of other
// ranks.
#pragma once
#include <functional>

#include "kernels/tensor/arena.h"
#include "parallel/mesh/groups.h"
#include "parallel/optim/optimizer.h"
#include "parallel/optim/parameter_spec.h"

namespace ltrain {

class TensorSums;

/// Consecutive elements of one parameter, in one bucket.
struct ParameterPart {
  int id = 0, bucket = 0;
  const ParameterSpec& spec;
  const ParameterRule& rule;
  int64_t begin = 0;  ///< elements of this rank's part of the parameter before them
  int64_t at = 0;     ///< elements with states on this rank in the bucket before them
  Elements elements;
  OptimizerStep args;  ///< arguments of this step, with the parameter's own settings
};

/// A full parameter of a bucket on this rank.
struct BucketMember {
  const ParameterSpec& spec;
  int64_t offset = 0;  ///< offset in the bucket
};

class UpdateContext {
 public:
  virtual ~UpdateContext() = default;

  virtual Stream& compute() = 0;
  virtual Memory& memory() = 0;
  virtual const Groups& groups() = 0;
  virtual const OptimizerSettings& settings() = 0;
  virtual DType master_type() = 0;
  virtual uint64_t seed() = 0;
  /// The current update. step().step counts updates, for bias corrections; step_number() counts steps from 1,
  /// skipped ones included.
  virtual const OptimizerStep& step() = 0;
  virtual int64_t step_number() = 0;
  virtual TensorSums& sums() = 0;

  // ---- parameters, in the order of buckets ----
  /// Buckets of parameters with rule `r` that move in this step.
  virtual std::vector<int> buckets(UpdateRule r) = 0;
  using EachPart = std::function<void(const ParameterPart&)>;
  enum class Extent : uint8_t {
    stored,   ///< elements with states on this rank
    updated,  ///< the same elements, for writing new weights
    /// elements that this rank adds to sums over full tensors: each element belongs to one rank under every
    /// ZeRO stage
    owned,
  };
  virtual void each_part(int bucket, Extent extent, const EachPart& f) = 0;
  void each_stored(UpdateRule r, const EachPart& f) { each_of(r, Extent::stored, f); }
  void each_updated(UpdateRule r, const EachPart& f) { each_of(r, Extent::updated, f); }
  void each_owned(UpdateRule r, const EachPart& f) { each_of(r, Extent::owned, f); }

  // ---- by buckets ----
  /// Ranks with the same parameters, on one level.
  virtual const Group& group(int bucket) = 0;
  virtual std::vector<BucketMember> members(int bucket) = 0;
  /// All elements with states on this rank.
  virtual Elements stored(int bucket) = 0;
  /// Scratch of Optimizer::element_scratch.
  virtual Tensor scratch(int bucket) = 0;
  /// On meta: checks that `t` has the placement of summed gradients with states on this rank. `when`: for
  /// messages.
  virtual void require_gradients(int bucket, Tensor t, std::string_view when) = 0;
  /// This rank's part of the step's weights, to be updated.
  virtual Tensor weights(int bucket) = 0;
  /// Sends written weights to the other ranks. `when`: for messages of the placement check.
  virtual void publish_weights(UpdateRule r, std::string_view when) = 0;
  /// Gathers the gradients of all ranks' parts, one after the other. Each rank then works on some of them and
  /// zeroes the others. sum_grads sums: every rank has its part as its gradients again. It frees the memory.
  virtual Tensor gather_grads(int bucket) = 0;
  virtual void sum_grads(int bucket, Tensor whole) = 0;
  /// For a bucket with averaged moments: values (full bucket) = factor * their sum over ranks, except where
  /// `where` is zero. Enqueued; the next each_part of the bucket waits for it.
  virtual void average_moments(int bucket, Tensor values, double factor, Tensor where) = 0;

 private:
  void each_of(UpdateRule r, Extent extent, const EachPart& f) {
    for (int b : buckets(r)) each_part(b, extent, f);
  }
};

}  // namespace ltrain
