// Sharding of a sequence over context-parallel ranks, and the copies of rows when attention collects its
// parts. Pure arithmetic: the loader, the layers and the planner read the same description.
#pragma once
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/tensor/positions.h"

namespace ltrain {

/// Access of attention to the other parts of the sequence (Megatron-LM's cp_comm_type).
enum class ContextComm : uint8_t {
  p2p,         ///< keys and values travel around a ring (arXiv:2310.01889)
  all_gather,  ///< every rank gathers all keys and values
  a2a,         ///< sequence to heads and back (DeepSpeed-Ulysses, arXiv:2309.14509)
  a2a_p2p      ///< a2a within groups of neighbours, a ring across the groups (arXiv:2405.07719)
};
LT_ENUM_NAMES(ContextComm, {ContextComm::p2p, "p2p"}, {ContextComm::all_gather, "all_gather"},
              {ContextComm::a2a, "a2a"}, {ContextComm::a2a_p2p, "a2a+p2p"});

struct ContextSharding {
  int64_t seq = 1;
  int ranks = 1, rank = 0;  ///< ranks of the context group
  ContextComm comm = ContextComm::p2p;
  int inner_ranks = 1;  ///< a2a+p2p: neighbours in an exchange; divides ranks

  /// Neighbours that exchange sequence for heads: all ranks for a2a, 1 without an exchange.
  int exchange() const;
  /// Groups of such neighbours; each attends to one part of the sequence at a time.
  int rings() const { return ranks / exchange(); }
  int ring() const { return rank / exchange(); }
  /// True if a rank has two mirror-image chunks of 2 * ranks, which balances causal attention; otherwise one
  /// of `ranks` chunks.
  bool zig_zag() const;
  /// Divisor of valid sequence lengths.
  int64_t unit() const;

  Positions rows_of(int r) const;  ///< rows of rank r
  Positions rows() const { return rows_of(rank); }
  /// Rows of all ranks that exchange with rank r together, ascending.
  Positions exchanged_rows_of(int r) const;
};

/// Copies `pieces` (one after the other: piece, sample, row) into the order of `whole` (sample, row), `cols`
/// columns wide. Each row of a piece must be a row of `whole`.
std::vector<CopyRectangle> rows_in_order(const std::vector<Positions>& pieces, const Positions& whole,
                                         int64_t batch, int64_t cols);

/// Columns [from, from + width), divided evenly over the pieces of an exchange.
struct ColumnRun {
  int64_t from = 0, width = 0;
};
/// Copies a matrix (rows, all columns) into `pieces` of (rows, the piece's share of every run, one after the
/// other).
std::vector<CopyRectangle> columns_in_pieces(int pieces, int64_t rows, const std::vector<ColumnRun>& runs);

std::vector<CopyRectangle> reversed(std::vector<CopyRectangle> parts);

}  // namespace ltrain
