#include "parallel/mesh/context_sharding.h"

namespace ltrain {

int ContextSharding::exchange() const {
  if (ranks == 1) return 1;
  return comm == ContextComm::a2a ? ranks : comm == ContextComm::a2a_p2p ? inner_ranks : 1;
}

bool ContextSharding::zig_zag() const {
  if (ranks == 1 || comm == ContextComm::a2a) return false;
  return comm != ContextComm::all_gather || seq % (2 * ranks) == 0;
}

int64_t ContextSharding::unit() const {
  if (ranks == 1) return 1;
  return comm == ContextComm::p2p || comm == ContextComm::a2a_p2p ? 2 * ranks : ranks;
}

Positions ContextSharding::rows_of(int r) const {
  LT_CHECK(seq % unit() == 0 && r >= 0 && r < ranks,
           "expected a sequence of a multiple of {} and a rank below {}, got {} and rank {}", unit(), ranks,
           seq, r);
  if (!zig_zag()) return Positions::run(r * (seq / ranks), seq / ranks, seq);
  const int64_t each = seq / (2 * ranks);
  return Positions::two_runs(r * each, (2 * ranks - 1 - r) * each, each, seq);
}

Positions ContextSharding::exchanged_rows_of(int r) const {
  const int together = exchange();
  ContextSharding outer = *this;
  // Neighbours have neighbouring chunks, so that a group's rows are again two runs, as with `rings` ranks.
  outer.ranks = rings();
  outer.comm = comm == ContextComm::a2a_p2p ? ContextComm::p2p : comm;
  outer.inner_ranks = 1;
  return together == 1 ? rows_of(r) : outer.rows_of(r / together);
}

std::vector<CopyRectangle> rows_in_order(const std::vector<Positions>& pieces, const Positions& whole,
                                         int64_t batch, int64_t cols) {
  std::vector<CopyRectangle> parts;
  int64_t begin = 0;
  for (const Positions& piece : pieces)
    for (int64_t b = 0; b < batch; ++b, begin += piece.rows)
      for (const auto& [row, count] : {std::pair<int64_t, int64_t>{0, piece.split},
                                       std::pair<int64_t, int64_t>{piece.split, piece.rows - piece.split}}) {
        if (count == 0) continue;
        const int64_t first = whole.row_of(piece.at(row)), last = whole.row_of(piece.at(row + count - 1));
        LT_CHECK(first >= 0 && last == first + count - 1,
                 "expected consecutive rows for {} positions from {} on, got rows {} to {}", count,
                 piece.at(row), first, last);
        parts.push_back({count, cols, begin + row, 0, b * whole.rows + first, 0});
      }
  return parts;
}

std::vector<CopyRectangle> columns_in_pieces(int pieces, int64_t rows, const std::vector<ColumnRun>& runs) {
  std::vector<CopyRectangle> parts;
  for (int piece = 0; piece < pieces; ++piece) {
    int64_t col = 0;
    for (const ColumnRun& run : runs) {
      LT_CHECK(run.width % pieces == 0, "expected a multiple of {} columns, got {}", pieces, run.width);
      const int64_t share = run.width / pieces;
      parts.push_back({rows, share, 0, run.from + piece * share, piece * rows, col});
      col += share;
    }
  }
  return parts;
}

std::vector<CopyRectangle> reversed(std::vector<CopyRectangle> parts) {
  for (CopyRectangle& p : parts) p = p.reversed();
  return parts;
}

}  // namespace ltrain
