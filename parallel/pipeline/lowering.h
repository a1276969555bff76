// Program of one rank of a pipeline: a schedule's computation with its transfers.
//
// Every directed link (rank a -> rank b) is one ordered channel with its own stream. `send` and `receive` are
// posted there and return at once. A matching pair ends when both are posted and all earlier pairs of the
// link have ended. Both sides post a link's transfers in the order in which the sender computes the tensors.
// `compute` begins after its received tensors have arrived. Neighbouring stages on one rank need no transfer.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace ltrain::pipeline {

enum class StepKind : uint8_t {
  receive,  ///< post: `tensor` from `peer`, into a new buffer
  compute,  ///< run `action`, interleaved with `second` if there is one
  send,     ///< post: `tensor`, from the previous compute, to `peer`
  release,  ///< wait for the end of the send of `tensor` to `peer`, and free its buffer
};

/// An activation is the input of `stage`; a gradient is the gradient of the output of `stage`.
struct TensorId {
  bool gradient = false;
  int stage = 0;
  int micro = 0;
  bool operator==(const TensorId&) const = default;
};
/// "activation 3/12", "gradient 2/0": stage and micro-batch.
std::string to_string(const TensorId& t);

struct PipelineStep {
  StepKind kind = StepKind::compute;
  Action action;                      ///< compute
  TensorId tensor;                    ///< for the other kinds
  int peer = -1;                      ///< for the other kinds: rank on the pipeline axis
  std::optional<Action> second = {};  ///< compute: second action of a pair, after `action` in the order
  bool operator==(const PipelineStep&) const = default;
};
std::string to_string(const PipelineStep& step);

/// Tensor that an action receives from another stage (none: stage -1), and tensor that it sends.
TensorId taken_by(const Schedule& schedule, const Action& action);
TensorId given_by(const Schedule& schedule, const Action& action);

/// Program of `rank`.
///
/// A pair is one compute, which begins after the inputs of both actions have arrived. A receive is posted
/// `lookahead` computes before its use, or earlier if a later transfer of its link is used sooner. A
/// `release` comes after the first compute of this rank that could not have run before the peer used the
/// tensor, so that it never blocks. If there is none (the last gradients), it comes at the end of the
/// program, where it may block. Received tensors are not released here: an activation lives until the
/// backward that ends its micro-batch on the stage, a gradient until the backward that uses it (W, if
/// backward is split).
std::vector<PipelineStep> lower(const Schedule& schedule, int rank, int lookahead = 1);

/// Programs of all ranks, by rank. Separate calls for all ranks would take time quadratic in the ranks.
using Programs = std::shared_ptr<const std::vector<std::vector<PipelineStep>>>;
Programs lower_all(const Schedule& schedule);

}  // namespace ltrain::pipeline
