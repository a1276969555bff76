#include "runtime/launch/restarts.h"

#include <algorithm>
#include <cmath>

#include "base/exit_codes.h"
#include "base/json/json.h"

namespace ltrain {

/// Returns whether this end repeats the one before: both restarts went on from the same step, saved nothing
/// and ended the same way. A first attempt counts only as the begin of such a row, since it may have come
/// further than its checkpoint.
bool RestartPolicy::recurs(const AttemptEnd& end) const {
  if (ends_.size() < 2 || end.saved) return false;
  const AttemptEnd& before = ends_.back();
  return !before.saved && before.first_step == end.first_step && before.how == end.how;
}

RestartDecision RestartPolicy::next(const AttemptEnd& end) {
  RestartDecision d;
  d.code = end.code;
  const bool repeats = recurs(end);
  ends_.push_back(end);
  without_save_ = end.saved ? 0 : without_save_;
  if (end.asked_to_stop || !launcher_restarts(static_cast<int>(end.code)) || limits_.most == 0) return d;
  if (repeats) {
    d.code = ExitCode::no_progress;
    d.why_not = fmt::format(
        "no restart: two restarts in a row {} ended the same way without a new checkpoint ({}), so "
        "another one would, too. Look at the log of the rank; where the fault comes at different steps, a "
        "smaller checkpoint.save_interval makes progress",
        end.first_step < 0 ? "before they reached a step" : fmt::format("from step {}", end.first_step),
        end.how);
    return d;
  }
  if (!any_left()) {
    d.why_not = fmt::format("no restart: launch.max_restarts = {} {} made", limits_.most,
                            limits_.most == 1 ? "is" : "are");
    return d;
  }
  d.restart = true;
  d.number = ++done_;
  const double wait = limits_.first_wait_seconds * std::exp2(std::min(without_save_++, 60));
  d.wait_seconds = std::min(wait, std::max(limits_.longest_wait_seconds, limits_.first_wait_seconds));
  return d;
}

std::string write_restart_note(const RestartNote& note) {
  return nlohmann::json{{"number", note.number},
                        {"most", note.most},
                        {"reason", note.reason},
                        {"end_step", note.end_step},
                        {"earlier_seconds", note.earlier_seconds}}
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::optional<RestartNote> read_restart_note(const Variables& variables) {
  const auto launched = variables.find("LTRAIN_LAUNCHER"), at = variables.find(kRestartVariable);
  if (launched == variables.end() || launched->second != "1" || at == variables.end()) return {};
  try {
    const nlohmann::json j = nlohmann::json::parse(at->second);
    RestartNote n;
    n.number = j.at("number").get<int>(), n.most = j.at("most").get<int>();
    n.reason = j.at("reason").get<std::string>();
    n.end_step = j.at("end_step").get<int64_t>();
    n.earlier_seconds = j.at("earlier_seconds").get<double>();
    return n;
  } catch (const nlohmann::json::exception& e) {
    fail(ExitCode::usage, "environment variable {}: must be what `ltrain run` has written: {}",
         kRestartVariable, e.what());
  }
}

}  // namespace ltrain
