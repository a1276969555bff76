// The mesh: ranks laid out over the parallel axes. Pure arithmetic.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor/placement.h"

namespace ltrain {

/// Axes from the innermost, whose groups are neighbours, to the outermost.
using AxisOrder = std::array<Axis, kAxisCount>;
/// Tensor groups talk most and stay on the fastest links; a pipeline talks least and crosses the slowest.
inline constexpr AxisOrder kAxisOrder{Axis::tensor, Axis::column, Axis::row,     Axis::depth,   Axis::context,
                                      Axis::expert, Axis::data,   Axis::replica, Axis::pipeline};

/// How tensor parallelism cuts Y = X W^T.
///   line (1d): W alone, over the tensor axis (arXiv:1909.08053).
///   grid (2d, 2.5d): X, W and Y into blocks over row and column, q of each (arXiv:2104.05343); depth is so
///     many grids with a copy of W each (arXiv:2105.14500).
///   cube (3d): all three matrices over depth, row and column, l of each (arXiv:2105.14450). What has its
///     columns over `column` before a linear has them over `row` after it, and back: the two take turns.
/// The residual stream of grid and cube: rows (whole sequences) over depth, then row; columns over column.
enum class TensorMode : uint8_t { one_d, two_d, three_d };

/// "tp-cp-dp-pp", Megatron-LM's notation, innermost first; each of the four once; ep at most once, right
/// before dp. Sets `error` to what is wrong, or leaves it empty. Expert comes before data, of which it is the
/// inner part, replica after it.
AxisOrder parse_axis_order(std::string_view text, std::string& error);

TensorMode tensor_mode(std::string_view name);  ///< "1d", "2d", "2.5d", "3d"

/// Degrees of the axes, and how ranks are laid out over them.
struct Mesh {
  std::array<int, kAxisCount> degree{1, 1, 1, 1, 1, 1, 1, 1, 1};
  int rank = 0;
  AxisOrder order = kAxisOrder;
  /// Of the axes that gradients are summed over: those of the first level (within a node). ZeRO cuts over it,
  /// two-level reductions reduce-scatter over it. The rest of kGradientAxes is the second level.
  AxisSet shard = kGradientAxes;
  TensorMode tensor_mode = TensorMode::one_d;
  /// Axes that experts are cut over: expert, and those inside it that cut_experts folded them over. Of ranks
  /// that have different tokens.
  AxisSet expert_axes = Axis::expert;

  AxisSet replicate() const { return kGradientAxes.without(shard); }
  /// Cuts the ranks that gradients are summed over into groups of `ranks` neighbours: data becomes data and
  /// replica. "" or why it cannot be.
  std::string split_levels(int64_t ranks);
  bool two_levels() const { return size(replicate()) > 1; }
  /// Cuts experts over `ranks` ranks. Attention sees these as what they were (Megatron-LM's parallel folding,
  /// arXiv:2504.14960): they are taken from tensor, with `over_tensor`, then from data, or where it does not
  /// divide, from context and data. After split_levels and cut_tensor. "" or why it cannot be.
  std::string cut_experts(int ranks, bool over_tensor = false);
  /// Lays `ranks` tensor-parallel ranks out. grid: ranks = depth * q^2; cube: ranks = l^3. After `order`.
  void cut_tensor(TensorMode mode, int ranks, int depth = 1);
  /// The axis that cuts what a sublayer computes inside: heads, hidden units of the feed-forward, the logits'
  /// vocabulary.
  Axis inner_axis() const;
  /// Parts that the sequences of a micro-batch are cut into.
  int sequence_parts() const { return size(Axis::depth) * size(Axis::row); }

  int size(Axis a) const { return degree[static_cast<int>(a)]; }
  int world() const;
  /// This rank's position on the axis.
  int coordinate(Axis a) const;
  int size(AxisSet axes) const;
  /// World ranks that differ from this one on these axes alone, in ascending order.
  std::vector<int> group(AxisSet axes) const;
  /// This rank's position in group(axes).
  int place_in(AxisSet axes) const;
  /// The world rank at `coordinate` of `a`, elsewhere at this rank's place.
  int at(Axis a, int coordinate) const;
};

}  // namespace ltrain
