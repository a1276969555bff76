// telemetry.on_end: tells another program that a job has ended.
#pragma once
#include <string>

#include "runtime/launch/restarts.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// JSON object for the command's standard input. docs/metrics.md lists its members.
std::string end_json(const Recipe& recipe, const JobEnd& end);

/// Runs the command by /bin/sh, for at most telemetry.on_end_seconds. Returns a warning if it failed, else an
/// empty text; also without a command.
std::string run_end_command(const Recipe& recipe, const JobEnd& end);

}  // namespace ltrain
