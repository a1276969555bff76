// Dependencies of actions, and an order in which a full schedule can run.
#pragma once
#include <algorithm>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace ltrain::pipeline {

/// Position of each action in its rank's order; -1: missing. Stages and micro-batches of the schedule must be
/// within range.
class Positions {
 public:
  explicit Positions(const Schedule& s);
  int forward(int stage, int micro) const { return forward_[index(stage, micro)]; }
  /// Position of B or I.
  int gradient(int stage, int micro) const { return gradient_[index(stage, micro)]; }
  /// Position of B or W, after which the stage has no activations of the micro-batch.
  int last(int stage, int micro) const { return last_[index(stage, micro)]; }

 private:
  size_t index(int stage, int micro) const { return static_cast<size_t>(stage) * micros_ + micro; }
  size_t micros_;
  std::vector<int> forward_, gradient_, last_;
};

/// Location of an action: s.order[rank][position].
struct Place {
  int rank = 0, position = 0;
};

/// Location of each action's dependency on another stage: F of the stage before, or B or I of the stage
/// after. Looked up once, since a schedule is traversed many times.
class Needs {
 public:
  Needs(const Schedule& s, const Positions& p);
  explicit Needs(const Schedule& s) : Needs(s, Positions(s)) {}
  /// Null: no dependency on another stage. Its position is -1 if the schedule lacks it.
  const Place* of(int rank, int position) const {
    const Place& p = all_[first_[static_cast<size_t>(rank)] + static_cast<size_t>(position)];
    return p.rank < 0 ? nullptr : &p;
  }
  /// Dependency that blocks a rank after done[rank] actions: one that its next action, or its next pair,
  /// needs, and that has not been visited. Null: none.
  const Place* waits_for(const Schedule& s, int rank, const std::vector<int>& done) const {
    const auto& order = s.order[static_cast<size_t>(rank)];
    const int at = done[static_cast<size_t>(rank)],
              end = std::min(at + actions_at(order, static_cast<size_t>(at)), static_cast<int>(order.size()));
    for (int i = at; i < end; ++i)
      if (const Place* from = of(rank, i))
        if (from->position < 0 || from->position >= done[static_cast<size_t>(from->rank)]) return from;
    return nullptr;
  }

 private:
  std::vector<size_t> first_;  // begin of each rank in all_
  std::vector<Place> all_;     // indexed by rank and position
};

/// Visits every action once, in the order of its rank and after its dependencies: visit(action, rank,
/// position). The actions of a pair follow each other, after the dependencies of both. Returns the number of
/// visited actions by rank; fewer than all if ranks wait for each other forever.
template <class Visit>
std::vector<int> run_in_order(const Schedule& s, const Needs& needs, const Visit& visit) {
  std::vector<int> done(s.order.size());
  // A rank runs until it must wait; the rank that it waits for wakes it.
  std::vector<std::vector<int>> waiting(s.order.size());  // indexed by the rank that is waited for
  std::vector<int> ready;
  for (int r = s.ranks - 1; r >= 0; --r) ready.push_back(r);
  while (!ready.empty()) {
    const int rank = ready.back();
    ready.pop_back();
    const auto& order = s.order[static_cast<size_t>(rank)];
    int& at = done[static_cast<size_t>(rank)];
    const int before = at;
    while (at < static_cast<int>(order.size())) {
      if (const Place* from = needs.waits_for(s, rank, done)) {
        if (from->rank != rank) waiting[static_cast<size_t>(from->rank)].push_back(rank);
        break;
      }
      for (int n = actions_at(order, static_cast<size_t>(at)); n > 0; --n, ++at)
        visit(order[static_cast<size_t>(at)], rank, at);
    }
    if (at == before) continue;
    // Ranks that waited for this one check again: it may have gone far enough.
    std::vector<int>& woken = waiting[static_cast<size_t>(rank)];
    ready.insert(ready.end(), woken.begin(), woken.end());
    woken.clear();
  }
  return done;
}

}  // namespace ltrain::pipeline
