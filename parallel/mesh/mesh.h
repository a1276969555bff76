// The mesh: layout of ranks over the parallel axes. Pure arithmetic.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor/placement.h"

namespace ltrain {

/// Axes from the innermost, with neighbouring ranks in its groups, to the outermost.
using AxisOrder = std::array<Axis, kAxisCount>;
/// Tensor groups communicate most and stay on the fastest links; a pipeline communicates least and crosses
/// the slowest.
inline constexpr AxisOrder kAxisOrder{Axis::tensor, Axis::column, Axis::row,     Axis::depth,   Axis::context,
                                      Axis::expert, Axis::data,   Axis::replica, Axis::pipeline};

/// Sharding of Y = X W^T by tensor parallelism.
///   line (1d): W alone, over the tensor axis (arXiv:1909.08053).
///   grid (2d, 2.5d): X, W and Y in blocks over row and column, q ranks each (arXiv:2104.05343); depth is the
///     number of grids, with a copy of W each (arXiv:2105.14500).
///   cube (3d): all three matrices over depth, row and column, l ranks each (arXiv:2105.14450). Activations
///   with
///     columns over `column` before a linear have them over `row` after it, and vice versa.
/// The residual stream of grid and cube: rows (full sequences) over depth, then row; columns over column.
enum class TensorMode : uint8_t { one_d, two_d, three_d };

/// Parses "tp-cp-dp-pp", Megatron-LM's notation, innermost first: each of the four once; ep at most once,
/// right before dp. Sets `error` to the mistake, or to an empty string. Expert comes before data, as its
/// inner part, replica after it.
AxisOrder parse_axis_order(std::string_view text, std::string& error);

TensorMode tensor_mode(std::string_view name);  ///< "1d", "2d", "2.5d", "3d"

/// Degrees of the axes, and the layout of ranks over them. With several sites (DiLoCo), axes and groups are
/// those of this rank's site, and the ranks of a site are consecutive.
struct Mesh {
  std::array<int, kAxisCount> degree{1, 1, 1, 1, 1, 1, 1, 1, 1};
  int sites = 1;
  int rank = 0;  ///< in the job
  AxisOrder order = kAxisOrder;
  /// Axes of the first level (within a node) among kGradientAxes. ZeRO shards over it, and two-level
  /// reductions reduce-scatter over it. The rest of kGradientAxes is the second level.
  AxisSet shard = kGradientAxes;
  TensorMode tensor_mode = TensorMode::one_d;
  /// Axes over which experts are sharded: expert, and axes inside it that cut_experts folded. Only of ranks
  /// with different tokens.
  AxisSet expert_axes = Axis::expert;

  AxisSet replicate() const { return kGradientAxes.without(shard); }
  /// Divides the ranks of the gradient sum into groups of `ranks` neighbours: data becomes data and replica.
  /// Returns an empty string or the reason why it cannot.
  std::string split_levels(int64_t ranks);
  bool two_levels() const { return size(replicate()) > 1; }
  /// Shards experts over `ranks` ranks. For attention these ranks keep their old axes (Megatron-LM's parallel
  /// folding, arXiv:2504.14960): they are taken from tensor, with `over_tensor`, then from data, or if that
  /// does not divide, from context and data. Called after split_levels and cut_tensor. Returns an empty
  /// string or the reason why it cannot.
  std::string cut_experts(int ranks, bool over_tensor = false);
  /// Lays out `ranks` tensor-parallel ranks. grid: ranks = depth * q^2; cube: ranks = l^3. Called after
  /// `order` is set.
  void cut_tensor(TensorMode mode, int ranks, int depth = 1);
  /// Axis that shards the inside of a sublayer: heads, hidden units of the feed-forward, the vocabulary of
  /// the logits.
  Axis inner_axis() const;
  /// Parts into which the sequences of a micro-batch are divided.
  int sequence_parts() const { return size(Axis::depth) * size(Axis::row); }

  int size(Axis a) const { return degree[static_cast<int>(a)]; }
  int site_ranks() const;  ///< ranks of a site
  int world() const { return site_ranks() * sites; }
  int site() const { return rank / site_ranks(); }
  /// Ranks at this rank's position in each site; and all ranks of the job.
  std::vector<int> site_peers() const;
  std::vector<int> all_ranks() const;
  /// This rank's position on the axis.
  int coordinate(Axis a) const;
  int size(AxisSet axes) const;
  /// World ranks that differ from this one on these axes only, in ascending order.
  std::vector<int> group(AxisSet axes) const;
  /// This rank's position in group(axes).
  int place_in(AxisSet axes) const;
  /// World rank at `coordinate` of `a`, with this rank's position on the other axes.
  int at(Axis a, int coordinate) const;
};

}  // namespace ltrain
