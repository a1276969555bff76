// Numbers and short texts of the host among the ranks of a group, outside a step: what ranks agree on before
// they train, and what checkpoints have to tell each other. Every function is collective, and blocks until it
// is done. `stream` is one of the CPU.
#pragma once
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace ltrain {

/// Every rank's text, by rank.
std::vector<std::string> gather_texts(Communicator& group, Stream& stream, const std::string& mine);
/// Every rank's numbers, one rank's after the other's; each rank has as many.
std::vector<int64_t> gather_numbers(Communicator& group, Stream& stream, std::vector<int64_t> mine);
/// Rank 0's text on every rank.
std::string broadcast_text(Communicator& group, Stream& stream, const std::string& mine);
/// The sum over the ranks.
int64_t sum_over(Communicator& group, Stream& stream, int64_t mine);
double sum_over(Communicator& group, Stream& stream, double mine);
/// Element-wise sums, in place.
void sum_over(Communicator& group, Stream& stream, std::vector<int64_t>& values);
/// Element-wise maxima.
std::vector<int64_t> max_over(Communicator& group, Stream& stream, std::vector<int64_t> mine);

}  // namespace ltrain
