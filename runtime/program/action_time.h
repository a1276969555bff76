// Time of one pipeline action in a rank's pass over the meta device.
#pragma once

namespace ltrain {

struct ActionTime {
  double seconds = 0;    ///< duration, without the wait for weights gathered once per step
  double gathering = 0;  ///< wait for weights gathered once per step
  double end = 0;        ///< end time since the pass over the actions, and with it their gathers, began
};

}  // namespace ltrain
