// What an action waits for, and an order in which a whole schedule can run.
#pragma once
#include <algorithm>
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

/// The place of an action: s.order[rank][position].
struct Place {
  int rank = 0, position = 0;
};

/// Of each action, where that stands which it needs of another stage: F of the stage before, or B or I of the
/// stage after. Looked up once: a schedule is followed many times.
class Needs {
 public:
  Needs(const Schedule& s, const Positions& p);
  explicit Needs(const Schedule& s) : Needs(s, Positions(s)) {}
  /// Null: nothing of another stage. Its position is -1 where the schedule does not have it.
  const Place* of(int rank, int position) const {
    const Place& p = all_[first_[static_cast<size_t>(rank)] + static_cast<size_t>(position)];
    return p.rank < 0 ? nullptr : &p;
  }
  /// What the rank waits for that has visited done[rank] actions: something that its next action needs, or
  /// one of its next pair, and that is not among the visited ones. Null: nothing.
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
  std::vector<size_t> first_;  // of all_, by rank
  std::vector<Place> all_;     // by rank and position
};

/// Visits every action once, each rank's in their order, each after what it needs; the two of a pair one
/// after the other, after what both need: visit(action, rank, position). Returns, by rank, how many were
/// visited: fewer than there are when ranks wait for each other forever.
template <class Visit>
std::vector<int> run_in_order(const Schedule& s, const Needs& needs, const Visit& visit) {
  std::vector<int> done(s.order.size());
  // A rank runs until it must wait; whoever gives what it waits for wakes it.
  std::vector<std::vector<int>> waiting(s.order.size());  // by the rank that is waited for
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
    // Whoever waited for this rank looks again: it may now have gone far enough.
    std::vector<int>& woken = waiting[static_cast<size_t>(rank)];
    ready.insert(ready.end(), woken.begin(), woken.end());
    woken.clear();
  }
  return done;
}

}  // namespace ltrain::pipeline
