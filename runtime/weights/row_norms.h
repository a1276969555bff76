// Norms of the rows of a matrix, for the magnitudes of DoRA.
#pragma once
#include <string>
#include <vector>

#include "runtime/weights/stream_tensor.h"

namespace ltrain {

/// Norms of rows [first, first + count) of `weight` of `shape`, a matrix or a stack of matrices whose rows
/// follow each other, read in fp32 some MiB at once.
std::vector<double> row_norms(const ReadSlice& read, const std::string& weight, const Shape& shape,
                              int64_t first, int64_t count);

}  // namespace ltrain
