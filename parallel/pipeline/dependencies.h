// What an action waits for, and an order in which a whole schedule can run.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace ltrain::pipeline {

/// Where each action stands in its rank's order; -1: nowhere. The schedule must have its sizes right: stages
/// and micro-batches within range.
class Positions {
 public:
  explicit Positions(const Schedule& s);
  int forward(int stage, int micro) const { return forward_[index(stage, micro)]; }
  /// Of B, or of I.
  int gradient(int stage, int micro) const { return gradient_[index(stage, micro)]; }
  /// Of B, or of W: after it nothing of the micro-batch is kept on the stage.
  int last(int stage, int micro) const { return last_[index(stage, micro)]; }

 private:
  size_t index(int stage, int micro) const { return static_cast<size_t>(stage) * micros_ + micro; }
  size_t micros_;
  std::vector<int> forward_, gradient_, last_;
};

/// An action of another stage that gives what `a` needs: F of the stage before, or the backward of the stage
/// after. kind is forward or backward (which stands for B and I).
std::optional<Action> needs(const Schedule& s, const Action& a);

/// The place of an action: s.order[rank][position].
struct Place {
  int rank = 0, position = 0;
};
Place place_of(const Schedule& s, const Positions& p, const Action& needed);

/// What the rank waits for that has visited done[rank] actions: something that its next action needs, or one
/// of its next pair, and that is not among the visited ones.
std::optional<Place> waits_for(const Schedule& s, const Positions& p, int rank, const std::vector<int>& done);

/// Visits every action once, each rank's in their order, each after what it needs; the two of a pair one
/// after the other, after what both need. Returns, by rank, how many were visited: fewer than there are when
/// ranks wait for each other forever.
std::vector<int> run_in_order(const Schedule& s, const Positions& p,
                              const std::function<void(const Action&, int rank, int position)>& visit);

}  // namespace ltrain::pipeline
