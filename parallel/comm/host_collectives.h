// Short texts among the ranks of a group that checkpoints have to themselves.
#pragma once
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace ltrain {

/// Every rank's text, by rank. Collective; blocks.
std::vector<std::string> gather_texts(Communicator& group, Stream& stream, const std::string& mine);
/// Rank 0's text on every rank.
std::string broadcast_text(Communicator& group, Stream& stream, const std::string& mine);
/// The sum over the ranks.
int64_t sum_over(Communicator& group, Stream& stream, int64_t mine);
/// Element-wise sums, in place.
void sum_over(Communicator& group, Stream& stream, std::vector<int64_t>& values);

}  // namespace ltrain
