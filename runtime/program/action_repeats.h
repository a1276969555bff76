// Actions of a rank's step on the meta device that are composed of earlier ones.
//
// From its second micro-batch to the one before its last a stage does the same again: each action of a kind
// takes the same time, asks for the same memory in the same order, and completes the same gradients. So the
// first of each kind are noted, and the later ones ask for that memory and take that time without running.
// The arena sees the same requests as in the whole pass: its peak is the same to the byte.
//
// What an action leaves, the next one of its micro-batch on its stage releases, or hands to another stage;
// an action that releases anything else is not repeatable. Nor is one that leaves a collective under way.
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
  /// Thrown by end(): the pass is to be made again with all of its actions.
  struct Impossible {};

  /// Whether a rank has enough of them, in an order that it can follow. Not for activations that leave the
  /// device, products of FP8, nor pairs of actions. Whoever runs a step knows what else differs between
  /// micro-batches: gradients that are reduced for each (ZeRO 2 and 3), or are rounded, and steps of two
  /// passes.
  static bool worthwhile(const Step& step, const pipeline::Schedule& schedule, int rank);
  /// `memory`: the step's.
  ActionRepeats(const pipeline::Schedule& schedule, int rank, Step& step, MetaMemory& memory);

  /// Whether repeat() is to be called in the place of running it, else begin() before and end() after. `in`:
  /// what it takes from another stage; `out`: what it gives to one.
  bool repeats(const pipeline::Action& a) const { return !runs_[static_cast<size_t>(a.micro)]; }
  Tensor repeat(const pipeline::Action& a, Tensor in);
  void begin(const pipeline::Action& a, Tensor in);
  void end(const pipeline::Action& a, Tensor out);

 private:
  /// Micro-batches that run: the first, which writes gradients, to which others add; the last, after which
  /// they are reduced; between them those that are noted, the first with each kind of action on each stage.
  static std::vector<char> that_run(const pipeline::Schedule& schedule, int rank);
  bool notes(const pipeline::Action& a) const {
    return a.micro > 0 && a.micro + 1 < static_cast<int>(runs_.size()) && !repeats(a);
  }
  /// One request of memory: of a slot that is given back, or of a new one.
  struct Request {
    int slot = -1;      ///< given back; -1: a new one
    int64_t bytes = 0;  ///< of it
  };
  struct Noted {
    double seconds = 0;
    std::vector<Stream*> streams;  ///< with collectives of it
    std::vector<Request> requests;
    int out = -1;  ///< slot of what it gives; how it lies there
    Shape out_shape;
    DType out_dtype = DType::f32;
    TensorRecord how;
  };
  /// Offsets of what a micro-batch has on a stage, in the order in which it came: first what its last action
  /// left, then what this one takes, then what it asks for. -1: given back.
  using Slots = std::vector<int64_t>;
  Slots& slots(const pipeline::Action& a) { return slots_[{a.stage, a.micro}]; }
  static bool ends(const pipeline::Action& a);  ///< the micro-batch on the stage
  /// Whether they have nothing left that the compute stream has not waited for.
  bool idle(const std::vector<Stream*>& streams) const;
  void finish(const pipeline::Action& a, Slots& slots, int out);

  Step& step_;
  MetaMemory& memory_;
  std::vector<char> runs_;                      ///< by micro-batch
  std::vector<Stream*> streams_;                ///< of groups, but for those between stages
  std::map<std::pair<int, int>, Noted> noted_;  // by kind and stage
  std::map<std::pair<int, int>, Slots> slots_;  // by stage and micro-batch
  std::vector<MetaMemory::Request> requests_;
  double begun_ = 0;
  std::vector<double> clocks_;  ///< of streams_, when the action that is noted began
  int stages_to_begin_ = 0;     ///< of the rank, that have no gradients yet
};

}  // namespace ltrain
