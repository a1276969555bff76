#include "runtime/checkpoint/resume_changes.h"

#include <algorithm>
#include <cmath>

#include "runtime/program/lr_schedule.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain {
namespace {

using recipe::Effect;
using recipe::Key;

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& p : parts) all += (all.empty() ? "" : "; ") + p;
  return all;
}

/// Changed keys that affect the result of a step, the schedule or the data: "optimizer.lr 3e-4 -> 1e-4".
std::vector<std::string> changed_keys(const Recipe& before, const Recipe& now) {
  std::vector<std::string> changed;
  for (const Key& key : recipe::schema()) {
    if (key.effect != Effect::function && key.effect != Effect::schedule && key.effect != Effect::data)
      continue;
    const bool was = key.in_dump(before), is = key.in_dump(now);
    const std::string a = was ? key.write(key, before, false) : "none",
                      b = is ? key.write(key, now, false) : "none";
    if (a == b) continue;
    const bool derived = !key.implied.empty() && now.origins && !now.origins->has(key.path);
    changed.push_back(fmt::format("{} {} -> {}{}", key.path, a, b,
                                  derived ? fmt::format(" (by default: {})", key.implied) : ""));
  }
  return changed;
}

/// Refuses other settings of DiLoCo where a difference of weights is on its way between sites.
void refuse_in_flight(int64_t step, const std::string& path, const DilocoSettings& before,
                      const DilocoSettings& now) {
  const bool same = before.sites == now.sites && before.inner_steps == now.inner_steps &&
                    before.fragments == now.fragments && before.delay == now.delay;
  const int fragment = before.in_flight_after(step);
  if (same || (fragment < 0 && (before.delay == 0 || now.in_flight_after(step) < 0))) return;
  const auto text = [](const DilocoSettings& d) {
    return fmt::format("{{sites: {}, inner_steps: {}, fragments: {}, delay: {}}}", d.sites, d.inner_steps,
                       d.fragments, d.delay);
  };
  fail(ExitCode::usage,
       "{}: diloco = {}: after step {} the difference of weights of fragment {} is on its way between sites, "
       "and "
       "the checkpoint is of diloco = {}; nearest valid value: that of the checkpoint, or a checkpoint of "
       "step "
       "{}, from which other values go on",
       path, text(now), step, std::max(fragment, now.in_flight_after(step)), text(before),
       (step / before.interval() + 1) * before.interval());
}

/// Refuses changes with which a run cannot continue from this checkpoint.
void refuse_impossible(const CheckpointInfo& i, const std::string& path, const Recipe& before,
                       const Recipe& now) {
  if ((before.precision == Precision::fp64) != (now.precision == Precision::fp64))
    fail(ExitCode::usage,
         "{}: was saved with precision {}, whose weights and states have another type than those of {}; "
         "nearest valid value of precision: {}",
         path, to_string(before.precision), to_string(now.precision), to_string(before.precision));
  const int64_t updates = i.updates();
  refuse_in_flight(updates, path, before.diloco, now.diloco);
  if (is_onebit(before.optimizer.kind) && updates >= before.optimizer.freeze_step &&
      now.optimizer.freeze_step > updates)
    fail(ExitCode::usage,
         "{}: is past its optimizer.freeze_step of {}: its second moment has stood still since, and {} would "
         "let it move again{}; give optimizer.freeze_step: {}",
         path, before.optimizer.freeze_step, now.optimizer.freeze_step,
         now.origins && now.origins->has("optimizer.freeze_step") ? ""
                                                                  : " (by default: a fifth of train_steps)",
         before.optimizer.freeze_step);
}

/// Notes a learning rate that differs from the value of the checkpoint's recipe for the next step.
void note_learning_rate(const CheckpointInfo& i, const Recipe& before, const Recipe& now,
                        std::vector<std::string>& notes) {
  if (i.step >= now.train.train_steps) return;
  const int64_t updates = i.step - i.skipped_steps;
  const double last = learning_rate(before.optimizer, before.schedule, updates),
               expected = learning_rate(before.optimizer, before.schedule, updates + 1),
               next = learning_rate(now.optimizer, now.schedule, updates + 1);
  if (std::abs(next - expected) <= 1e-9 * std::max(next, expected)) return;
  std::string keep;
  if (before.schedule.lr_decay_steps != now.schedule.lr_decay_steps && now.origins &&
      !now.origins->has("schedule.lr_decay_steps"))
    keep = fmt::format("; schedule.lr_decay_steps: {} keeps the schedule", before.schedule.lr_decay_steps);
  notes.push_back(
      fmt::format("note: the learning rate of step {} is {:.4g}; by the recipe in the checkpoint it was "
                  "{:.4g} in step {} and would be {:.4g} now{}",
                  i.step + 1, next, last, i.step, expected, keep));
}

/// Checks that stages of the mix begin at the steps that the recipe names, since they count samples.
void check_stages(const CheckpointInfo& i, const std::string& path, const Recipe& r,
                  const data::DataIdentity& before) {
  if (r.data.stages.empty() && before.stages.empty()) return;
  if (r.checkpoint.resume_data == ResumeData::restart)
    fail(ExitCode::usage,
         "checkpoint.resume_data = restart: with data.stages a resume goes on with the sample of its step; "
         "nearest valid value: continue");
  if (const int64_t samples = samples_before_step(r, i.step + 1); samples != i.data_cursor)
    fail(ExitCode::usage,
         "{}: has read {} samples in {} steps, and with train.global_batch_size = {} of the recipe it would "
         "be "
         "{}: data.stages begin at steps of one batch size. Give the batch of the checkpoint's recipe",
         path, i.data_cursor, i.step, r.train.global_batch_size, samples);
}

/// Position at which the data continue, after refusing or noting differences.
DataPosition data_position(const CheckpointInfo& i, const std::string& path, const Recipe& r,
                           const data::DataIdentity& now, std::vector<std::string>& notes) {
  DataPosition at{i.data_cursor, i.consumed_samples, i.consumed_tokens};
  std::vector<std::string> different;
  if (i.data) {
    check_stages(i, path, r, *i.data);
    different = data::differences(*i.data, now, i.data_cursor);
  } else {
    notes.push_back(
        fmt::format("note: {} is of format version 1, which has no identity of its data: whether the recipe "
                    "names the same data was not checked",
                    path));
    if (i.seed != r.seed) different.push_back(fmt::format("seed {} -> {}", i.seed, r.seed));
  }
  if (different.empty()) return at;
  const ResumeData how = r.checkpoint.resume_data;
  if (how == ResumeData::same)
    fail(ExitCode::usage,
         "{}: was trained on other data than the recipe names: {}.\nIts next sample, number {}, is another "
         "one there. To go on at that number in the order of the new data, set checkpoint.resume_data: "
         "continue; {}else make the recipe agree",
         path, joined(different), i.data_cursor,
         r.data.stages.empty()
             ? "to begin with the first sample of the new data, checkpoint.resume_data: restart; "
             : "");
  if (how == ResumeData::restart) at.cursor = 0;
  notes.push_back(
      fmt::format("note: other data than in the checkpoint, as checkpoint.resume_data: {} allows: {}; the "
                  "next sample is number {}",
                  how, joined(different), at.cursor));
  return at;
}

}  // namespace

void check_states(const CheckpointInfo& i, const std::string& path, const Recipe& r) {
  refuse_impossible(i, path, parse_recipe(i.recipe, path + " (recipe)"), r);
}

ResumeChanges compare_resume(const CheckpointInfo& i, const std::string& path, const Recipe& r,
                             const data::DataIdentity& now) {
  ResumeChanges c;
  c.position = data_position(i, path, r, now, c.notes);
  std::optional<Recipe> before;
  try {
    before = parse_recipe(i.recipe, path + " (recipe)");
  } catch (const Error& e) {
    c.notes.push_back(fmt::format(
        "note: the recipe in the checkpoint cannot be read, so that what changed is not listed: {}",
        e.what()));
    return c;
  }
  refuse_impossible(i, path, *before, r);
  if (const auto changed = changed_keys(*before, r); !changed.empty())
    c.notes.push_back("changed since the checkpoint: " + joined(changed));
  note_learning_rate(i, *before, r, c.notes);
  return c;
}

}  // namespace ltrain
