#include "parallel/mesh.h"

#include <algorithm>

namespace ltrain {
namespace {

/// Ranks between neighbours on the axis.
int stride(const Mesh& m, Axis a) {
  int s = 1;
  for (int i = kAxisCount - 1; i > static_cast<int>(a); --i) s *= m.degree[i];
  return s;
}

}  // namespace

int Mesh::world() const {
  int n = 1;
  for (int d : degree) n *= d;
  return n;
}

int Mesh::coordinate(Axis a) const { return rank / stride(*this, a) % size(a); }

std::vector<int> Mesh::group(AxisSet axes) const {
  std::vector<int> ranks;
  Mesh other = *this;
  for (other.rank = 0; other.rank < world(); ++other.rank) {
    bool same = true;
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i); !axes.has(a)) same &= other.coordinate(a) == coordinate(a);
    if (same) ranks.push_back(other.rank);
  }
  return ranks;
}

int Mesh::place_in(AxisSet axes) const {
  const std::vector<int> ranks = group(axes);
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

int Mesh::at(Axis a, int c) const { return rank + (c - coordinate(a)) * stride(*this, a); }

}  // namespace ltrain
