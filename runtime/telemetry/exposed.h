// Exposed communication by axis: how long compute waited for which group's collectives.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor/stream.h"

namespace ltrain {

/// The short name under which metrics have the communication of a group over `axes`: dp (gradients, weights
/// of ZeRO, and what all ranks agree on), tp, pp, cp, ep. Empty for no axes: a wait for no communication.
std::string comm_axis(AxisSet axes);

/// What a stream waited since `before`, seconds by comm_axis, longest first; "" is what was no communication.
std::vector<std::pair<std::string, double>> exposed_by_axis(const Stream::Waits& now,
                                                            const Stream::Waits& before);

}  // namespace ltrain
