#include "runtime/program/stage_run.h"

#include <algorithm>
#include <set>

#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/micro_batch_overlap.h"

namespace ltrain {

using namespace pipeline;

namespace {

/// Mesh placement of a tensor sent between stages. It differs between data, context and depth ranks. On the
/// tensor-parallel axes it is laid out like the residual stream.
Placement between_stages(const Step& step, Axis a) {
  if (kGradientAxes.has(a) || a == Axis::depth) return Placement::V();
  if (a == Axis::row) return Placement::S(0);
  if (a == Axis::column) return Placement::S(1);
  return a == Axis::tensor && step.cuts_rows() ? Placement::S(0) : Placement::R();
}

}  // namespace

StageRun::StageRun(const Decoder& decoder, Step& step, const pipeline::Schedule& schedule,
                   MetaMemory* repeated)
    : decoder_(decoder), step_(step), schedule_(schedule), rank_(step.groups.coordinate(Axis::pipeline)) {
  if (repeated && ActionRepeats::worthwhile(step, schedule, rank_))
    repeats_ = std::make_unique<ActionRepeats>(schedule, rank_, step, *repeated);
}

int StageRun::local_stage(int stage) const {
  LT_CHECK(schedule_.rank_of_stage[stage] == rank_, "expected stage {} on pipeline rank {}, got rank {}",
           stage, rank_, schedule_.rank_of_stage[stage]);
  return schedule_.chunk_of(stage);
}

Tensor StageRun::take(const TensorId& t) {
  if (t.stage < 0) return {};
  const auto at = here_.find(key(t));
  LT_CHECK(at != here_.end(), "expected {} to be received or computed before it is used", to_string(t));
  at->second.done.wait(step_.compute);
  const Tensor tensor = at->second.tensor;
  here_.erase(at);
  return tensor;
}

void StageRun::receive(const PipelineStep& s, const MicroBatch& like) {
  const Shape shape{step_.stream_rows(like), step_.stream_cols(decoder_.config().hidden_size)};
  Flight f;
  // A received activation is the input of the stage's first norm, so it lives until the backward.
  f.tensor = s.tensor.gradient ? step_.temporary("received gradient", shape)
                               : step_.activation("received activation", shape);
  f.done = step_.groups.link(s.peer, rank_).start_recv(step_.compute, f.tensor, 0);
  for (int i = 0; i < kAxisCount; ++i) {
    const Axis a = static_cast<Axis>(i);
    place_received(step_.compute, f.tensor, a, between_stages(step_, a));
  }
  here_[key(s.tensor)] = f;
}

void StageRun::send(const PipelineStep& s) {
  const auto at = here_.find(key(s.tensor));
  LT_CHECK(at != here_.end(), "expected {} to be computed before it is sent", to_string(s.tensor));
  Flight f = at->second;
  here_.erase(at);
  for (int i = 0; i < kAxisCount; ++i) {
    const Axis a = static_cast<Axis>(i);
    place_require(step_.compute, "handing over to the next stage", f.tensor, a, between_stages(step_, a));
  }
  f.done = step_.groups.link(rank_, s.peer).start_send(step_.compute, f.tensor, 1);
  sent_[key(s.tensor)] = f;
}

void StageRun::release_sent(const PipelineStep& s) {
  const auto at = sent_.find(key(s.tensor));
  LT_CHECK(at != sent_.end(), "expected {} to be sent before it is released", to_string(s.tensor));
  at->second.done.wait(step_.compute);
  if (const TensorRecord* record = at->second.tensor.record; record && record->sent != 1)
    fail(ExitCode::internal,
         "placement error: {} was sent {} times\n  fix: send it once over the link of its stages",
         to_string(s.tensor), record->sent);
  step_.memory.release(at->second.tensor);
  sent_.erase(at);
}

void StageRun::compute(const Action& a, const MicroBatch& mb) {
  const Tensor in = take(taken_by(schedule_, a));
  const double begin = step_.compute.clock, gathering = step_.params.waited_for_updates();
  Tensor out;
  if (repeats_ && repeats_->repeats(a)) {
    out = repeats_->repeat(a, in);
  } else {
    if (repeats_) repeats_->begin(a, in);
    out = run_action(step_, a, mb, in);
    if (repeats_) repeats_->end(a, out);
  }
  note_time(begin, gathering);
  give(a, out);
}

void StageRun::compute_pair(const Action& a, const MicroBatch& of_a, const Action& b,
                            const MicroBatch& of_b) {
  const bool forward_first = a.kind == ActionKind::forward;
  const Tensor in_a = take(taken_by(schedule_, a)), in_b = take(taken_by(schedule_, b));
  const double begin = step_.compute.clock, gathering = step_.params.waited_for_updates();
  Tensor out_a, out_b;
  Step other = step_;
  const std::function<void()> first =
                                  [&] { out_a = run_action(forward_first ? other : step_, a, of_a, in_a); },
                              second = [&] {
                                out_b = run_action(forward_first ? step_ : other, b, of_b, in_b);
                              };
  // The backward starts first because it releases memory. Sums keep the order of the schedule.
  MicroBatchOverlap::run(step_.compute, forward_first ? second : first, forward_first ? first : second,
                         forward_first ? 0 : 1, [&](bool on) {
                           if (step_.compute.meta()) step_.compute.meta()->set_model_work(on);
                         });
  note_time(begin, gathering);
  if (step_.compute.meta()) actions_.push_back({0, 0, actions_.back().end});
  give(a, out_a);
  give(b, out_b);
}

void StageRun::note_time(double begin, double gathering) {
  if (!step_.compute.meta()) return;
  const double end = step_.compute.clock, waited = step_.params.waited_for_updates() - gathering;
  actions_.push_back({end - begin - waited, waited, end - begun_});
}

void StageRun::give(const Action& a, Tensor out) {
  const TensorId given = given_by(schedule_, a);
  LT_CHECK((given.stage >= 0) == out.defined(), "expected {} to return {}, got {}", to_string(a),
           given.stage >= 0 ? "a tensor" : "no tensor", out.defined() ? "a tensor" : "none");
  if (out.defined()) here_[key(given)] = {out, {}};
}

Tensor StageRun::run_action(Step& step, const Action& a, const MicroBatch& mb, Tensor in) {
  const int stage = local_stage(a.stage);
  const std::pair<int, int> which{a.stage, a.micro};
  Tensor out;
  switch (a.kind) {
    case ActionKind::forward:
      if (step.training) {
        out = decoder_.forward(step, mb, stage, in, saved_[which]);
      } else {
        Decoder::Saved unused;
        out = decoder_.forward(step, mb, stage, in, unused);
      }
      break;
    case ActionKind::backward:
      out = decoder_.backward(step, mb, stage, in, saved_.at(which));
      saved_.erase(which);
      break;
    case ActionKind::backward_input:
      step.deferred = &waiting_[which];
      out = decoder_.backward(step, mb, stage, in, saved_.at(which));
      step.deferred = nullptr;
      saved_.erase(which);
      break;
    case ActionKind::backward_weight:
      step.enter("weight gradients");
      waiting_.at(which).run(step);
      waiting_.erase(which);
      break;
  }
  return out;
}

void StageRun::run(const std::vector<PipelineStep>& program,
                   const std::function<MicroBatch(int micro)>& micro_batch) {
  begun_ = step_.compute.clock;
  for (const PipelineStep& s : program) {
    switch (s.kind) {
      case StepKind::receive:
        receive(s, micro_batch(s.tensor.micro));
        break;
      case StepKind::compute:
        if (s.second) {
          const MicroBatch mb = micro_batch(s.action.micro);
          compute_pair(s.action, mb, *s.second, micro_batch(s.second->micro));
        } else {
          compute(s.action, micro_batch(s.action.micro));
        }
        break;
      case StepKind::send:
        send(s);
        break;
      case StepKind::release:
        release_sent(s);
        break;
    }
  }
  LT_CHECK(here_.empty() && sent_.empty() && saved_.empty() && waiting_.empty(),
           "expected a pipeline program to use all tensors, got {} unused tensors and {} unfinished backward "
           "passes",
           here_.size() + sent_.size(), saved_.size() + waiting_.size());
}

pipeline::Schedule single_stage_schedule(int micros, bool pairs) {
  pipeline::Schedule s;
  s.name = "none";
  s.micros = micros;
  s.rank_of_stage = {0};
  s.order.resize(1);
  for (int m = 0; m < micros; ++m) {
    s.order[0].push_back({ActionKind::forward, 0, m});
    s.order[0].push_back({ActionKind::backward, 0, m, pairs && m + 1 < micros});
  }
  return s;
}

pipeline::Schedule first_micros(const pipeline::Schedule& schedule, int micros) {
  pipeline::Schedule s = schedule;
  s.micros = std::min(s.micros, micros);
  for (auto& order : s.order) erase_actions(order, [&](const Action& a) { return a.micro >= micros; });
  return s;
}

pipeline::Schedule forward_only(const pipeline::Schedule& schedule, int micros) {
  pipeline::Schedule s = first_micros(schedule, micros);
  s.forward_only = true;
  for (auto& order : s.order)
    erase_actions(order, [](const Action& a) { return a.kind != ActionKind::forward; });
  return s;
}

std::vector<std::pair<int, int>> schedule_links(const pipeline::Schedule& s) {
  std::set<std::pair<int, int>> links;
  for (int i = 0; i + 1 < s.stages(); ++i) {
    const int a = s.rank_of_stage[i], b = s.rank_of_stage[i + 1];
    if (a == b) continue;
    links.insert({a, b});
    links.insert({b, a});
  }
  return {links.begin(), links.end()};
}

}  // namespace ltrain
