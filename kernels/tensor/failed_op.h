// How an error of a GPU, which shows when the host next waits, names the op that made it.
#pragma once
#include <string>

namespace ltrain {

/// LTRAIN_CUDA_SYNC=1: every op is waited for before its stream has the next one. (Not before other streams
/// have theirs: a rank that waits for a transfer may have to send another one first.)
bool waits_for_each_op();

/// A line that follows an error's text: this thread's last op, and how to have the one that failed where that
/// may be another; "" where there was none.
std::string failed_op_text();

}  // namespace ltrain
