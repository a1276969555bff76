// Executor of a rank's lowered pipeline program. It runs all schedules, in training and evaluation, including
// models with a single stage.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "models/decoder/decoder.h"
#include "parallel/pipeline/lowering.h"
#include "runtime/program/action_repeats.h"
#include "runtime/program/action_time.h"

namespace ltrain {

class StageRun {
 public:
  /// `schedule`: schedule of the whole pipeline; this rank's position in it comes from step.groups.
  /// `repeated`: on meta, memory for ActionRepeats; null: every action runs.
  StageRun(const Decoder& decoder, Step& step, const pipeline::Schedule& schedule,
           MetaMemory* repeated = nullptr);

  /// Runs every step of the program. `micro_batch(m)` is called when work on micro-batch m begins. Its result
  /// must stay valid until the last action on m on this rank.
  void run(const std::vector<pipeline::PipelineStep>& program,
           const std::function<MicroBatch(int micro)>& micro_batch);

  /// On meta: time of each action, in execution order. The first action of a pair has the time of both, the
  /// second has 0.
  const std::vector<ActionTime>& actions() const { return actions_; }

 private:
  using Key = std::tuple<bool, int, int>;  // gradient, stage, micro-batch
  struct Flight {                          // a tensor in flight
    Tensor tensor;
    AsyncHandle done;
  };
  static Key key(const pipeline::TensorId& t) { return {t.gradient, t.stage, t.micro}; }
  void receive(const pipeline::PipelineStep& s, const MicroBatch& like);
  void send(const pipeline::PipelineStep& s);
  void release_sent(const pipeline::PipelineStep& s);
  void compute(const pipeline::Action& a, const MicroBatch& mb);
  /// Overlaps the two actions of a pair. Both inputs are waited for first.
  void compute_pair(const pipeline::Action& a, const MicroBatch& of_a, const pipeline::Action& b,
                    const MicroBatch& of_b);
  /// On meta: records the time of the compute stream since `begin`. `gathering`: its total wait for gathered
  /// weights at `begin`.
  void note_time(double begin, double gathering);
  void give(const pipeline::Action& a, Tensor out);
  Tensor run_action(Step& step, const pipeline::Action& a, const MicroBatch& mb, Tensor in);
  Tensor take(const pipeline::TensorId& t);
  int local_stage(int stage) const;

  const Decoder& decoder_;
  Step& step_;
  const pipeline::Schedule& schedule_;
  int rank_ = 0;
  std::unique_ptr<ActionRepeats> repeats_;
  std::vector<ActionTime> actions_;
  double begun_ = 0;            // on meta: time at which run() began
  std::map<Key, Flight> here_;  // received or computed tensors that are not yet used or sent
  std::map<Key, Flight> sent_;
  std::map<std::pair<int, int>, Decoder::Saved> saved_;     // key: stage and micro-batch
  std::map<std::pair<int, int>, WeightGradients> waiting_;  // key: stage and micro-batch
};

/// Schedule of a model with one stage: forward and backward of each micro-batch in turn. With `pairs`, each
/// backward overlaps the forward of the next micro-batch.
pipeline::Schedule single_stage_schedule(int micros, bool pairs = false);
/// The schedule restricted to its first `micros` micro-batches, for a smaller step.
pipeline::Schedule first_micros(const pipeline::Schedule& schedule, int micros);
/// The forward actions of first_micros(), for evaluation.
pipeline::Schedule forward_only(const pipeline::Schedule& schedule, int micros);
/// Directed pairs of pipeline ranks that exchange tensors, in ascending order. GroupSet makes a link for
/// each.
std::vector<std::pair<int, int>> schedule_links(const pipeline::Schedule& schedule);

}  // namespace ltrain
