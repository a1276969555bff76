// Exposed communication by axis: time that compute waited for the collectives of each group.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor/stream.h"

namespace ltrain {

/// Short name in metrics for the communication of a group over `axes`: dp (gradients, ZeRO weights,
/// agreements of all ranks), tp, pp, cp, ep. Empty for no axes: the wait was not for communication.
std::string comm_axis(AxisSet axes);

/// Seconds that a stream waited since `before`, by comm_axis, longest first. "" is not communication.
std::vector<std::pair<std::string, double>> exposed_by_axis(const Stream::Waits& now,
                                                            const Stream::Waits& before);
/// Milliseconds of one axis of exposed_by_axis().
double exposed_ms(const std::vector<std::pair<std::string, double>>& exposed, const std::string& axis);
/// Sum over the axes of exposed_by_axis(), without waits for other work.
double total_of(const std::vector<std::pair<std::string, double>>& exposed);

}  // namespace ltrain
