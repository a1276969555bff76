// Replays repeated pipeline actions of a rank's step on the meta device.
//
// Between its second and its second-to-last micro-batch a stage repeats itself: each action of a kind takes
// the same time, allocates the same memory in the same order, and completes the same gradients. The first
// action of each kind runs and is recorded. Later ones allocate the same memory and advance the clock by the
// same time without running. Their ops, traffic and waits are counted again. The arena's peak is that of a
// full pass to the byte: it sees the same requests, but for those that are released within the action and
// cannot raise the peak.
//
// The output of an action is released by the next action of its micro-batch on its stage, or handed to
// another stage. An action that releases anything else, or that leaves a collective running, is not
// repeatable.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "kernels/meta/meta_memory.h"
#include "models/layers/step.h"
#include "parallel/pipeline/schedule.h"

namespace ltrain {

class ActionRepeats {
 public:
  /// Thrown by repeat() and end(): the pass must be repeated with every action run.
  struct Impossible {};

  /// Returns whether `rank` has actions to repeat and an order of actions that allows it. Returns false with
  /// activation offload, FP8 matmuls, or paired actions. The caller checks the other cases in which
  /// micro-batches differ: gradients reduced per micro-batch (ZeRO 2 and 3), rounded gradients, and steps of
  /// two passes.
  static bool worthwhile(const Step& step, const pipeline::Schedule& schedule, int rank);
  /// `memory`: the memory that `step` allocates from.
  ActionRepeats(const pipeline::Schedule& schedule, int rank, Step& step, MetaMemory& memory);

  /// For an action with repeats(a), repeat() is called instead of running it. For any other action, begin()
  /// is called before it and end() after it. `in`: the input from another stage. `out`: the output for
  /// another stage. Both may be undefined.
  bool repeats(const pipeline::Action& a) const { return !runs_[static_cast<size_t>(a.micro)]; }
  Tensor repeat(const pipeline::Action& a, Tensor in);
  void begin(const pipeline::Action& a, Tensor in);
  void end(const pipeline::Action& a, Tensor out);

 private:
  /// One flag per micro-batch: whether it runs. The first micro-batch writes gradients that later ones add
  /// to, and gradients are reduced after the last, so both run. Between them run the micro-batches that are
  /// recorded: the first with each kind of action on each stage.
  static std::vector<char> that_run(const pipeline::Schedule& schedule, int rank);
  bool notes(const pipeline::Action& a) const {
    return a.micro > 0 && a.micro + 1 < static_cast<int>(runs_.size()) && !repeats(a);
  }
  /// One memory request: releases `slot`, or allocates a new one.
  struct Request {
    int slot = -1;                              ///< slot to release; -1: allocate
    MemoryKind kind = MemoryKind::temporaries;  ///< kind and size of the allocation
    int64_t bytes = 0;
    /// Closed run of requests that begins with this one: all that it allocates it releases, and nothing else,
    /// so that it leaves the arena as it was. Its number of requests; 0: none.
    int run = 0;
    int run_slots = 0;                    ///< its allocations
    int64_t run_bytes = 0, run_live = 0;  ///< their sum, and the most that is live at once
  };
  /// Sets the runs of requests.
  static void find_runs(std::vector<Request>& requests, int first_slot);
  struct Noted {
    double seconds = 0;
    std::vector<Stream*> streams;  ///< streams on which the action ran collectives
    MetaTrace::Part work;
    std::vector<std::pair<AxisSet, double>> waits;  ///< waits of the compute stream, in seconds
    std::vector<Request> requests;
    int out = -1;  ///< slot of the output; -1: no output
    Shape out_shape;
    DType out_dtype = DType::f32;
    TensorRecord how;
  };
  /// Offsets in the arena of the tensors that a micro-batch has on a stage: first the output of its last
  /// action, then the input of this action, then its allocations. -1: released.
  using Slots = std::vector<int64_t>;
  Slots& slots(const pipeline::Action& a) { return slots_[{a.stage, a.micro}]; }
  /// Returns whether `a` is the last action of its micro-batch on its stage.
  static bool ends(const pipeline::Action& a);
  /// Returns whether the compute stream is at or past the end of all work on `streams`.
  bool idle(const std::vector<Stream*>& streams) const;
  void finish(const pipeline::Action& a, Slots& slots, int out);

  Step& step_;
  MetaMemory& memory_;
  std::vector<char> runs_;                      ///< index: micro-batch
  std::vector<Stream*> streams_;                ///< streams of all groups except the links between stages
  std::map<std::pair<int, int>, Noted> noted_;  // key: kind and stage
  std::map<std::pair<int, int>, Slots> slots_;  // key: stage and micro-batch
  std::vector<MetaMemory::Request> requests_;
  double begun_ = 0;
  Stream::Waits waited_;        ///< waits before the recorded action
  MetaTrace::Part work_;        ///< its work so far
  std::vector<double> clocks_;  ///< clocks of streams_ when the recorded action began
  int stages_to_begin_ = 0;     ///< local stages without gradients yet
};

}  // namespace ltrain
