// Comparison of the steps that a run has recorded with the same steps repeated (`ltrain replay`): the same
// bits, or the step where they part.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"

namespace ltrain {

struct StepValues {
  int64_t step = 0;
  std::optional<double> loss, grad_norm;  ///< nothing: not finite, or not recorded
};

/// Steps after `first` up to `last` that RUN_DIR/metrics.jsonl records, ascending. Throws Error (data).
std::vector<StepValues> read_steps(const std::string& run_dir, int64_t first, int64_t last);

/// Last step recorded in RUN_DIR/metrics.jsonl, or the later one that RUN_DIR/not-finite names; 0: none.
int64_t last_attempted_step(const std::string& run_dir);

/// Returns whether RUN_DIR/not-finite has the batch of that step, which ended the run.
bool ended_not_finite(const std::string& run_dir, int64_t step);

struct Replay {
  int64_t begun = 0;                           ///< step of the checkpoint; 0: the beginning
  int64_t step = 0;                            ///< last step to repeat
  std::vector<StepValues> recorded, repeated;  ///< steps after `begun`, ascending
  bool failed_before = false;                  ///< `step` was NaN or infinite in the run
  bool failed_again = false;                   ///< and in the repetition
  bool same_settings = true;                   ///< no override of the recipe was given
};

enum class ReplayResult : uint8_t {
  repeats,         ///< all steps of the record have the same bits
  differs,         ///< a step of the record has other bits
  fails_again,     ///< the step is NaN or infinite in both
  fails_no_more,   ///< it was NaN or infinite in the run only
  fails_only_now,  ///< it is NaN or infinite in the repetition only
  nothing,         ///< no step is in both
};
LT_ENUM_NAMES(ReplayResult, {ReplayResult::repeats, "repeats"}, {ReplayResult::differs, "differs"},
              {ReplayResult::fails_again, "fails_again"}, {ReplayResult::fails_no_more, "fails_no_more"},
              {ReplayResult::fails_only_now, "fails_only_now"}, {ReplayResult::nothing, "nothing"});
ReplayResult result_of(const Replay& replay);
/// First step of the record whose loss or gradient norm has other bits; null: none.
const StepValues* first_difference(const Replay& replay);
/// Lines for a person: what was compared, the values where they part, what it means.
std::string replay_text(const Replay& replay);
std::string replay_json(const Replay& replay);

}  // namespace ltrain
