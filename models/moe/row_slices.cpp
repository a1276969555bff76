#include "models/moe/row_slices.h"

#include <algorithm>

#include "base/error.h"

namespace ltrain {

std::vector<std::vector<int64_t>> cut_rows(const std::vector<int64_t>& all, int64_t ranks, int64_t most) {
  const int64_t experts = static_cast<int64_t>(all.size()) / ranks, local = experts / ranks;
  LT_CHECK(most > 0 && local > 0,
           "expected slices of at least 1 row and at least 1 expert for each rank, got {} rows and {} "
           "experts on {} ranks",
           most, experts, ranks);
  std::vector<std::vector<int64_t>> slices(1, std::vector<int64_t>(all.size()));
  for (int64_t to = 0; to < ranks; ++to) {
    size_t slice = 0;
    int64_t room = most;
    for (int64_t expert = to * local; expert < (to + 1) * local; ++expert)
      for (int64_t from = 0; from < ranks; ++from)
        for (int64_t left = all[from * experts + expert]; left > 0;) {
          if (room == 0) {
            room = most;
            if (++slice == slices.size()) slices.emplace_back(all.size());
          }
          const int64_t rows = std::min(left, room);
          slices[slice][from * experts + expert] = rows;
          left -= rows;
          room -= rows;
        }
  }
  return slices;
}

}  // namespace ltrain
