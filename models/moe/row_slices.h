// The rows that come to the ranks of the experts, cut into slices that there is memory for.
#pragma once
#include <cstdint>
#include <vector>

namespace ltrain {

/// `all`: rows of each rank for each expert, (ranks, experts). Cut into slices of at most `most` rows for any
/// rank: its rows in the order of its experts, then of the ranks that they come from, then of tokens. There
/// is at least one slice, and of the later ones a rank may get no rows. By what all ranks know: they agree.
std::vector<std::vector<int64_t>> cut_rows(const std::vector<int64_t>& all, int64_t ranks, int64_t most);

}  // namespace ltrain
