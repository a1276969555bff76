// Slices of the rows for each rank's experts, so that each fits in memory.
#pragma once
#include <cstdint>
#include <vector>

namespace ltrain {

/// Divides rows into slices of at most `most` rows for any rank. `all`: rows of each rank for each expert,
/// (ranks, experts). A rank's rows are in the order of its experts, then of their source ranks, then of
/// tokens. There is at least one slice; a rank may have no rows in later ones. All ranks have the same input
/// and agree.
std::vector<std::vector<int64_t>> cut_rows(const std::vector<int64_t>& all, int64_t ranks, int64_t most);

}  // namespace ltrain
