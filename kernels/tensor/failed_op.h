// Error texts of a GPU that name the failing op. Such an error shows at the host's next wait.
#pragma once
#include <string>

namespace ltrain {

/// True with LTRAIN_CUDA_SYNC=1: the host waits for every op before its stream gets the next one. Other
/// streams go on meanwhile, because a rank that waits for a transfer may have to start another one first.
bool waits_for_each_op();

/// A line to append to an error text: this thread's last op, and how to find the failing op if it may be
/// another one. Empty if there was no op.
std::string failed_op_text();

}  // namespace ltrain
