// Layout of a tensor on the axes of the mesh. Part of its type, checked on the meta device.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ltrain {

/// Axes of the mesh. Replica is the outer part of two-level data parallelism: ranks of one data group are
/// near each other and shard or reduce first; ranks of one replica group hold the same shards and reduce
/// second. Expert is the innermost part of data parallelism if experts are sharded over it; all other code
/// treats it as data. Tensor parallelism has one axis (tensor) or, in two and three dimensions, three: rows
/// of activations (tokens) are sharded over depth and row, their columns over column (parallel/mesh/mesh.h).
enum class Axis : uint8_t { data, pipeline, context, tensor, expert, replica, depth, row, column };
inline constexpr int kAxisCount = 9;

constexpr std::string_view axis_name(Axis a) {
  constexpr std::string_view names[kAxisCount] = {"data",    "pipeline", "context", "tensor", "expert",
                                                  "replica", "depth",    "row",     "column"};
  return names[static_cast<int>(a)];
}

/// A set of axes, such as the axes that a group of ranks spans.
struct AxisSet {
  uint16_t bits = 0;
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis a) : bits(static_cast<uint16_t>(1u << static_cast<int>(a))) {}
  constexpr bool has(Axis a) const { return bits >> static_cast<int>(a) & 1; }
  constexpr AxisSet operator|(AxisSet o) const {
    AxisSet s;
    s.bits = static_cast<uint16_t>(bits | o.bits);
    return s;
  }
  constexpr AxisSet without(AxisSet o) const {
    AxisSet s;
    s.bits = static_cast<uint16_t>(bits & ~o.bits);
    return s;
  }
  bool operator==(const AxisSet&) const = default;
};
constexpr AxisSet operator|(Axis a, Axis b) { return AxisSet(a) | AxisSet(b); }
/// Every axis: the world.
inline constexpr AxisSet kAllAxes = Axis::data | Axis::pipeline | Axis::context | Axis::tensor |
                                    Axis::expert | Axis::replica | Axis::depth | Axis::row | Axis::column;
/// Axes of a tensor-parallel matmul.
inline constexpr std::array<Axis, 4> kTensorAxes{Axis::tensor, Axis::depth, Axis::row, Axis::column};
/// Axes over which samples differ.
inline constexpr AxisSet kDataAxes = Axis::data | Axis::replica | Axis::expert;
/// Axes of the gradient reduction: ranks with the same parameters and different tokens.
inline constexpr AxisSet kGradientAxes = kDataAxes | Axis::context;
/// Subset of `axes` with more than one rank. `size(Axis)` returns the ranks of an axis.
template <class Size>
constexpr AxisSet long_axes(AxisSet axes, Size&& size) {
  AxisSet set;
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); axes.has(a) && size(a) > 1) set = set | a;
  return set;
}
/// "data+context"; "world" for all axes.
std::string_view axis_set_name(AxisSet axes);

/// Placement on one axis: all ranks hold the same values (R), consecutive slices of dim `dim` (S), different
/// values without a global dim (V), or summands of the value (P).
struct Placement {
  enum Kind : uint8_t { replicated, sharded, varying, partial };
  Kind kind = replicated;
  int8_t dim = 0;  ///< sharded dim, S only
  bool operator==(const Placement&) const = default;
  static Placement R() { return {}; }
  static Placement S(int dim) { return {sharded, static_cast<int8_t>(dim)}; }
  static Placement V() { return {varying, 0}; }
  static Placement P() { return {partial, 0}; }
};

std::string to_string(Placement p);

struct Placements {
  std::array<Placement, kAxisCount> axis;
  Placement& operator[](Axis a) { return axis[static_cast<int>(a)]; }
  const Placement& operator[](Axis a) const { return axis[static_cast<int>(a)]; }
  bool operator==(const Placements&) const = default;
};

}  // namespace ltrain
