// What a TensorUpdate may ask of whoever holds the buckets: views of the parameters that have its optimizer,
// sums over ranks, the weights of other ranks.
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
  int64_t begin = 0;  ///< elements of this rank's part of the parameter that come before them
  int64_t at = 0;     ///< elements that this rank has states of in the bucket and that come before them
  Elements elements;
  AdamwArgs args;  ///< of this step, with the parameter's own settings
};

/// A whole parameter of a bucket, as this rank has it.
struct BucketMember {
  const ParameterSpec& spec;
  int64_t offset = 0;  ///< in the bucket
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
  /// The update that runs. Its step counts updates that were made, for bias corrections; step_number() counts
  /// steps from 1, those without an update as well.
  virtual const AdamwArgs& step() = 0;
  virtual int64_t step_number() = 0;
  virtual TensorSums& sums() = 0;

  // ---- parameters, in the order of buckets ----
  /// Buckets of parameters with rule `r` that move in this step.
  virtual std::vector<int> buckets(UpdateRule r) = 0;
  using EachPart = std::function<void(const ParameterPart&)>;
  enum class Extent : uint8_t {
    stored,   ///< what this rank has states of
    updated,  ///< the same, where weights are given their new values
    owned,  ///< what this rank adds to sums over whole tensors: an element is one rank's under every stage of
            ///< ZeRO
  };
  virtual void each_part(int bucket, Extent extent, const EachPart& f) = 0;
  void each_stored(UpdateRule r, const EachPart& f) { each_of(r, Extent::stored, f); }
  void each_updated(UpdateRule r, const EachPart& f) { each_of(r, Extent::updated, f); }
  void each_owned(UpdateRule r, const EachPart& f) { each_of(r, Extent::owned, f); }

  // ---- by buckets ----
  /// The ranks that have the same parameters, on one level.
  virtual const Group& group(int bucket) = 0;
  virtual std::vector<BucketMember> members(int bucket) = 0;
  /// All that this rank has states of.
  virtual Elements stored(int bucket) = 0;
  /// Of Optimizer::element_scratch.
  virtual Tensor scratch(int bucket) = 0;
  /// On meta: `t` lies as the gradients of what this rank has states of, summed. `when`: for messages.
  virtual void require_gradients(int bucket, Tensor t, std::string_view when) = 0;
  /// The weights of the step that this rank updates: its part of those of the bucket.
  virtual Tensor weights(int bucket) = 0;
  /// After weights were written: to the other ranks. `when`: for messages of the placement check.
  virtual void publish_weights(UpdateRule r, std::string_view when) = 0;
  /// The gradients of all ranks' parts behind each other. sum_grads frees that memory, when each rank has
  /// worked on some of it and zeroed the others: every rank has its part of the sum as its gradients again.
  virtual Tensor gather_grads(int bucket) = 0;
  virtual void sum_grads(int bucket, Tensor whole) = 0;
  /// Of a bucket whose optimizer averages moments: values (of all of it) = factor times their sum over ranks,
  /// but where `where` is zero. Enqueued: the next each_part of the bucket waits for it.
  virtual void average_moments(int bucket, Tensor values, double factor, Tensor where) = 0;

 private:
  void each_of(UpdateRule r, Extent extent, const EachPart& f) {
    for (int b : buckets(r)) each_part(b, extent, f);
  }
};

}  // namespace ltrain
