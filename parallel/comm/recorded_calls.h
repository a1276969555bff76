// Calls of a recording group in order, for comparison between its ranks.
#pragma once
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

namespace ltrain {

struct RecordedCall {
  CollectiveInfo info;
  std::string_view layer;  ///< layer that made the call; interned
};

struct RecordedCalls {
  std::vector<int> members;  ///< world ranks in the order of the group
  std::vector<RecordedCall> calls;
};

/// Calls of a recording group; null for other groups.
const RecordedCalls* recorded_calls(const Communicator& group);

}  // namespace ltrain
