// The program of one rank of a pipeline: a schedule's computation with the transfers that it takes.
//
// Every directed link (rank a -> rank b) is one channel that keeps its order and has a stream of its own:
// `send` and `receive` are posted there and return at once, and a pair of them ends when both are posted and
// all earlier pairs of the link have ended. Both sides post a link's transfers in the order in which the
// sender computes the tensors. `compute` begins when its received tensors are there. Neighbouring stages on
// one rank hand over without a transfer.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace ltrain::pipeline {

enum class StepKind : uint8_t {
  receive,  ///< post: `tensor` from `peer`, into a buffer that begins to live here
  compute,  ///< run `action`, and `second`, where there is one, by turns with it
  send,     ///< post: `tensor`, made by the compute before, to `peer`
  release,  ///< wait until the send of `tensor` to `peer` has ended and give its buffer back
};

/// An activation is the input of `stage`, a gradient that of the output of `stage`.
struct TensorId {
  bool gradient = false;
  int stage = 0;
  int micro = 0;
  bool operator==(const TensorId&) const = default;
};
/// "activation 3/12", "gradient 2/0": stage, micro-batch.
std::string to_string(const TensorId& t);

struct PipelineStep {
  StepKind kind = StepKind::compute;
  Action action;                      ///< compute
  TensorId tensor;                    ///< the others
  int peer = -1;                      ///< the others: rank on the pipeline axis
  std::optional<Action> second = {};  ///< compute: the second of a pair, after `action` in the order
  bool operator==(const PipelineStep&) const = default;
};
std::string to_string(const PipelineStep& step);

/// What an action takes from another stage (nothing: stage -1), and what it gives to one.
TensorId taken_by(const Schedule& schedule, const Action& action);
TensorId given_by(const Schedule& schedule, const Action& action);

/// The program of `rank`.
///
/// A pair is one compute, which begins when what both of its actions take is there. A receive is posted
/// `lookahead` computes before its use, earlier only where a later transfer of its
/// link is used sooner. A `release` stands after the first compute of this rank that could not have run
/// before the peer used the tensor, so that waiting there never blocks; where there is none (the last
/// gradients), at the end of the program, where it may. Received tensors are not released here: an activation
/// lives until the backward that ends its micro-batch on the stage, a gradient until the backward that uses
/// it (W, where backward is split).
std::vector<PipelineStep> lower(const Schedule& schedule, int rank, int lookahead = 1);

/// The programs of all ranks, by rank: one after the other takes them the square of the ranks.
using Programs = std::shared_ptr<const std::vector<std::vector<PipelineStep>>>;
Programs lower_all(const Schedule& schedule);

}  // namespace ltrain::pipeline
