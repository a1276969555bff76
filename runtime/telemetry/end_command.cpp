#include "runtime/telemetry/end_command.h"

#include "base/exit_codes.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "base/run_child.h"
#include "parallel/comm/socket.h"
#include "runtime/launch/flight_dump.h"

namespace ltrain {

std::string end_json(const Recipe& recipe, const JobEnd& end) {
  const auto step = [](int64_t s) { return s < 0 ? nlohmann::json(nullptr) : nlohmann::json(s); };
  const nlohmann::json j{{"name", recipe.name},
                         {"output_dir", recipe.output_dir},
                         {"host", host_name()},
                         {"exit_code", end.code},
                         {"text", exit_code_text(end.code)},
                         {"start_again", script_restarts(end.code)},
                         {"reason", end.reason},
                         {"restarts", end.restarts},
                         {"first_step", step(end.first_step)},
                         {"saved_step", step(end.saved_step)},
                         {"end_step", end.end_step > 0 ? nlohmann::json(end.end_step) : nullptr},
                         {"seconds", end.seconds},
                         {"ended_at", unix_seconds()}};
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string run_end_command(const Recipe& recipe, const JobEnd& end) {
  if (!recipe.telemetry.on_end) return "";
  const ChildEnd child = run_child({"/bin/sh", "-c", *recipe.telemetry.on_end},
                                   recipe.telemetry.on_end_seconds, end_json(recipe, end));
  if (child.how == ChildEnd::How::exited && child.number == 0) return "";
  const size_t last = child.output.find_last_not_of("\n\r ");
  const std::string said = last == std::string::npos ? "" : child.output.substr(0, last + 1);
  return fmt::format("warning: the command of telemetry.on_end {}{}{}", child.text, said.empty() ? "" : ": ",
                     printable(said, 500));
}

}  // namespace ltrain
