// One factor for the bounds of everything that watches a clock.
#pragma once

namespace ltrain {

/// LTRAIN_TIME_SCALE, 1 without it: bounds on time are multiplied by it on a crowded machine or under a
/// sanitizer. Fails with ExitCode::usage on anything but a number in (0, 1000].
double time_scale();

}  // namespace ltrain
