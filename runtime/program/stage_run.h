// Runs a rank's lowered pipeline program: the one executor of all schedules, of training and of evaluation,
// and of a model that is not cut into stages at all.
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
  /// `schedule`: of the whole pipeline; this rank's place on it is that of step.groups. `repeated`: on meta;
  /// null: each action runs.
  StageRun(const Decoder& decoder, Step& step, const pipeline::Schedule& schedule,
           MetaMemory* repeated = nullptr);

  /// Runs every step of the program. `micro_batch(m)` is asked for when stage work on m begins and must stay
  /// valid until its last action on this rank.
  void run(const std::vector<pipeline::PipelineStep>& program,
           const std::function<MicroBatch(int micro)>& micro_batch);

  /// On meta: each action, in the order in which they ran. Of a pair the first has what both took, the second
  /// nothing.
  const std::vector<ActionTime>& actions() const { return actions_; }

 private:
  using Key = std::tuple<bool, int, int>;  // gradient, stage, micro
  struct Flight {                          // a tensor on its way
    Tensor tensor;
    AsyncHandle done;
  };
  static Key key(const pipeline::TensorId& t) { return {t.gradient, t.stage, t.micro}; }
  void receive(const pipeline::PipelineStep& s, const MicroBatch& like);
  void send(const pipeline::PipelineStep& s);
  void give_back(const pipeline::PipelineStep& s);
  void compute(const pipeline::Action& a, const MicroBatch& mb);
  /// The two actions of a pair, by turns; what both take is waited for first.
  void compute_pair(const pipeline::Action& a, const MicroBatch& of_a, const pipeline::Action& b,
                    const MicroBatch& of_b);
  /// Notes, on meta, what the compute stream did since `begin`, of which it waited for updated weights since
  /// it had waited `gathering` for them.
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
  double begun_ = 0;            // on meta: when run() began
  std::map<Key, Flight> here_;  // received, or made and not yet used or sent
  std::map<Key, Flight> sent_;
  std::map<std::pair<int, int>, Decoder::Saved> saved_;     // by stage and micro-batch
  std::map<std::pair<int, int>, WeightGradients> waiting_;  // likewise
};

/// The schedule of a model that is not cut: F and B of one micro-batch after the other; with `pairs` each B
/// and the next F by turns.
pipeline::Schedule single_stage_schedule(int micros, bool pairs = false);
/// A schedule's order of the first `micros` of its micro-batches alone: a smaller step.
pipeline::Schedule first_micros(const pipeline::Schedule& schedule, int micros);
/// The forward half of that: evaluation.
pipeline::Schedule forward_only(const pipeline::Schedule& schedule, int micros);
/// Directed pairs of pipeline ranks that exchange tensors, in ascending order: what GroupSet makes links of.
std::vector<std::pair<int, int>> schedule_links(const pipeline::Schedule& schedule);

}  // namespace ltrain
