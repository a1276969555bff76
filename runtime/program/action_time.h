// What an action of a pipeline took in a rank's pass over the meta device.
#pragma once

namespace ltrain {

struct ActionTime {
  double seconds = 0;    ///< with what it waited for within, but for weights gathered once a step
  double gathering = 0;  ///< that it waited for those
  double end = 0;        ///< after the pass over the actions began, and with it their gathers
};

}  // namespace ltrain
