// One factor for all time limits.
#pragma once

namespace ltrain {

/// LTRAIN_TIME_SCALE, default 1: time limits are multiplied by it on a crowded machine or under a sanitizer.
/// Throws with ExitCode::usage unless it is a number in (0, 1000].
double time_scale();

}  // namespace ltrain
