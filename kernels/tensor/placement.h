// How a tensor lies on the axes of the mesh. Part of its type, checked on the meta device.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ltrain {

/// Axes of the mesh. Replica is the outer part of data parallelism where it has two levels: ranks of one data
/// group are near each other and shard or reduce first, those of one replica group hold the same and come
/// second. Expert is the innermost part of data parallelism where experts are cut over it; everything else
/// sees it as data. Tensor parallelism has one axis (tensor) or, in two and three dimensions, three: rows of
/// activations (tokens) are cut over depth and row, their columns over column (parallel/mesh/mesh.h).
enum class Axis : uint8_t { data, pipeline, context, tensor, expert, replica, depth, row, column };
inline constexpr int kAxisCount = 9;

constexpr std::string_view axis_name(Axis a) {
  constexpr std::string_view names[kAxisCount] = {"data",    "pipeline", "context", "tensor", "expert",
                                                  "replica", "depth",    "row",     "column"};
  return names[static_cast<int>(a)];
}

/// Some axes: those that a group of ranks spans, or on which something holds.
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
/// Every axis: what the world spans.
inline constexpr AxisSet kAllAxes = Axis::data | Axis::pipeline | Axis::context | Axis::tensor |
                                    Axis::expert | Axis::replica | Axis::depth | Axis::row | Axis::column;
/// Those of a tensor-parallel matmul.
inline constexpr std::array<Axis, 4> kTensorAxes{Axis::tensor, Axis::depth, Axis::row, Axis::column};
/// Ranks that have different samples.
inline constexpr AxisSet kDataAxes = Axis::data | Axis::replica | Axis::expert;
/// What gradients are reduced over: ranks that hold the same parameters and see different tokens.
inline constexpr AxisSet kGradientAxes = kDataAxes | Axis::context;
/// Those of `axes` that have more than one rank; `size(Axis)` gives the ranks of each.
template <class Size>
constexpr AxisSet long_axes(AxisSet axes, Size&& size) {
  AxisSet set;
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); axes.has(a) && size(a) > 1) set = set | a;
  return set;
}
/// "data+context"; "world" for all.
std::string_view axis_set_name(AxisSet axes);

/// On one axis: every rank holds the same values (R), consecutive slices of dim `dim` (S), different values
/// with no global dim behind them (V), or summands of which the sum is the value (P).
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
