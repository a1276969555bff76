#include "runtime/telemetry/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "runtime/telemetry/metrics_lines.h"

namespace ltrain {
namespace {

using nlohmann::json;

const StepValues* find_step(const std::vector<StepValues>& steps, int64_t step) {
  const auto at = std::lower_bound(steps.begin(), steps.end(), step,
                                   [](const StepValues& s, int64_t n) { return s.step < n; });
  return at == steps.end() || at->step != step ? nullptr : &*at;
}

std::string number(const std::optional<double>& v) { return v ? fmt::format("{}", *v) : "not finite"; }

json values(const StepValues* s) {
  if (!s) return nullptr;
  return {{"step", s->step},
          {"lm_loss", s->loss ? json(*s->loss) : json(nullptr)},
          {"grad_norm", s->grad_norm ? json(*s->grad_norm) : json(nullptr)}};
}

/// Steps that both runs have.
int64_t compared_steps(const Replay& r) {
  return std::count_if(r.recorded.begin(), r.recorded.end(),
                       [&](const StepValues& s) { return find_step(r.repeated, s.step) != nullptr; });
}

std::string difference_text(const Replay& r, const StepValues& was) {
  const StepValues& is = *find_step(r.repeated, was.step);
  const std::string values =
      fmt::format("step {}: loss {} recorded, {} repeated; gradient norm {} recorded, {} repeated\n",
                  was.step, number(was.loss), number(is.loss), number(was.grad_norm), number(is.grad_norm));
  if (!r.same_settings)
    return values +
           "The settings given with the replay are others than those of the run, so bits may differ.\n";
  return values +
         "Same checkpoint, data and settings, other bits: on a CPU, and on a GPU with deterministic: true, "
         "one of "
         "the two\nruns had a fault of memory, a card or a link, or another version of ltrain. Replay once "
         "more, on "
         "other machines:\nthe value that comes twice is the sound one.\n";
}

}  // namespace

std::vector<StepValues> read_steps(const std::string& run_dir, int64_t first, int64_t last) {
  MetricsLines lines(run_dir + "/metrics.jsonl");
  std::vector<StepValues> steps;
  for (json line; lines.next(line);) {
    if (!line.contains("lm_loss")) continue;  // evaluations, restarts and stragglers
    const int64_t step = lines.whole_number(line, "step");
    if (step > first && step <= last)
      steps.push_back({step, lines.number(line, "lm_loss"), lines.number(line, "grad_norm")});
  }
  return steps;
}

bool ended_not_finite(const std::string& run_dir, int64_t step) {
  std::error_code error;
  return std::filesystem::is_directory(fmt::format("{}/not-finite/step-{:08d}", run_dir, step), error);
}

int64_t last_attempted_step(const std::string& run_dir) {
  int64_t last = 0;
  std::error_code error;
  if (std::filesystem::exists(run_dir + "/metrics.jsonl", error))
    for (const StepValues& s : read_steps(run_dir, 0, INT64_MAX)) last = std::max(last, s.step);
  constexpr std::string_view kPrefix = "step-";
  for (std::filesystem::directory_iterator at(run_dir + "/not-finite", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    int64_t step = 0;
    const char* stop = name.data() + name.size();
    if (name.starts_with(kPrefix) && std::from_chars(name.data() + kPrefix.size(), stop, step).ptr == stop)
      last = std::max(last, step);
  }
  return last;
}

const StepValues* first_difference(const Replay& r) {
  for (const StepValues& was : r.recorded) {
    const StepValues* is = find_step(r.repeated, was.step);
    if (is && (is->loss != was.loss || is->grad_norm != was.grad_norm)) return &was;
  }
  return nullptr;
}

ReplayResult result_of(const Replay& r) {
  if (first_difference(r)) return ReplayResult::differs;
  if (r.failed_again) return r.failed_before ? ReplayResult::fails_again : ReplayResult::fails_only_now;
  if (r.failed_before) return ReplayResult::fails_no_more;
  return compared_steps(r) == 0 ? ReplayResult::nothing : ReplayResult::repeats;
}

std::string replay_text(const Replay& r) {
  const int64_t compared = compared_steps(r);
  std::string out = fmt::format("replay of steps {} to {}: {} step{} compared\n", r.begun + 1, r.step,
                                compared, compared == 1 ? "" : "s");
  switch (result_of(r)) {
    case ReplayResult::repeats:
      return out +
             "All have the same bits in loss and gradient norm: what the run recorded comes from weights, "
             "data and "
             "settings,\nnot from a fault of the hardware.\n";
    case ReplayResult::differs:
      return out + difference_text(r, *first_difference(r));
    case ReplayResult::fails_again:
      return out + fmt::format(
                       "step {} is NaN or infinite again: the cause is in weights, data or settings, and "
                       "comes back.\nThe message above names where the value comes first.\n",
                       r.step);
    case ReplayResult::fails_no_more:
      return out + fmt::format(
                       "step {} was NaN or infinite, and is finite now{}\nWith the settings of then, the "
                       "value came from a fault that did not come back: memory, a card or a link. Go on with "
                       "ltrain run.\n",
                       r.step,
                       find_step(r.repeated, r.step)
                           ? fmt::format(": loss {}", number(find_step(r.repeated, r.step)->loss))
                           : ".");
    case ReplayResult::fails_only_now:
      return out + fmt::format(
                       "step {} is NaN or infinite now, and was not in the run: this repetition had a "
                       "fault, or the settings are others.\n",
                       r.step);
    case ReplayResult::nothing:
      return out + "Nothing to compare: the run has recorded none of these steps.\n";
  }
  return out;
}

std::string replay_json(const Replay& r) {
  const StepValues* was = first_difference(r);
  return json{{"result", to_string(result_of(r))},
              {"from_step", r.begun},
              {"step", r.step},
              {"compared_steps", compared_steps(r)},
              {"same_settings", r.same_settings},
              {"first_difference",
               was ? json{{"recorded", values(was)}, {"repeated", values(find_step(r.repeated, was->step))}}
                   : json(nullptr)}}
             .dump(1) +
         "\n";
}

}  // namespace ltrain
