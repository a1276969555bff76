// Host collectives of numbers and short texts, outside a step: agreements before training, and messages of
// checkpoints. Every function is collective, and blocks until it is done. `stream` is a CPU stream.
#pragma once
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace ltrain {

/// Every rank's text, in rank order.
std::vector<std::string> gather_texts(Communicator& group, Stream& stream, const std::string& mine);
/// Every rank's numbers, one rank after the other; all ranks have the same count.
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
