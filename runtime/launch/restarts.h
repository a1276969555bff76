// Decision of the launcher after a failed attempt: start all ranks again, or end. No process and no clock, so
// that it is tested by itself.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/launch/environment/environment.h"

namespace ltrain {

/// launch.max_restarts and its waits.
struct RestartLimits {
  int most = 0;  ///< restarts in one `ltrain run`
  double first_wait_seconds = 5, longest_wait_seconds = 300;
};

/// End of one attempt of all ranks, for the decision.
struct AttemptEnd {
  ExitCode code = ExitCode::done;
  std::string how;             ///< Verdict::how
  std::string line;            ///< first line of the verdict, for messages
  std::string lines;           ///< all lines of the verdict
  int64_t first_step = -1;     ///< step that the attempt resumed from; -1: it never got so far
  int64_t end_step = 0;        ///< last step of the run by its recipe and --steps; 0: not known
  int64_t saved_step = -1;     ///< newest checkpoint that it committed; -1: none
  bool saved = false;          ///< it committed a checkpoint
  bool asked_to_stop = false;  ///< a signal came: the user wants the job to end
};

struct RestartDecision {
  bool restart = false;
  int number = 0;                  ///< number of this restart, from 1
  double wait_seconds = 0;         ///< before it
  ExitCode code = ExitCode::done;  ///< exit code of the job if it ends
  std::string why_not;             ///< sentence for the user; empty if the verdict has said everything
};

/// Counts restarts. The wait doubles with each restart in a row that saved nothing.
class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartLimits& limits) : limits_(limits) {}
  /// Call once after each attempt.
  RestartDecision next(const AttemptEnd& end);
  /// Returns whether an attempt that ends now could be followed by another.
  bool any_left() const { return done_ < limits_.most; }

 private:
  bool recurs(const AttemptEnd& end) const;
  const RestartLimits limits_;
  int done_ = 0, without_save_ = 0;
  std::vector<AttemptEnd> ends_;
};

/// End of the whole job, for telemetry.on_end.
struct JobEnd {
  int code = 0;
  std::string reason;  ///< lines of the verdict; empty unless a rank failed
  int restarts = 0;
  int64_t first_step = -1, saved_step = -1, end_step = 0;  ///< steps of the last attempt, as in AttemptEnd
  double seconds = 0;
};

/// Facts about a restart that the launcher hands to its ranks in LTRAIN_RESTART, as JSON.
struct RestartNote {
  int number = 0, most = 0;
  std::string reason;          ///< first line of the verdict
  int64_t end_step = 0;        ///< last step of the first attempt, which --steps decided; 0: unknown
  double earlier_seconds = 0;  ///< time since the first attempt began
};
std::string write_restart_note(const RestartNote& note);
/// Note of this rank's launcher; none in a first attempt, or without a launcher of ltrain. Throws Error
/// (usage).
std::optional<RestartNote> read_restart_note(const Variables& variables);

inline constexpr const char* kRestartVariable = "LTRAIN_RESTART";

/// Facts that rank 0 tells its launcher (Job::tell): the step that it begins after, the last step of this
/// run, and the step of the newest checkpoint that this attempt has committed.
inline constexpr const char *kFirstStep = "run/first_step", *kEndStep = "run/end_step",
                            *kSavedStep = "run/saved_step";

}  // namespace ltrain
