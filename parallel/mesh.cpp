#include "parallel/mesh.h"

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

std::vector<int> Mesh::group(Axis a) const {
  std::vector<int> ranks;
  const int first = rank - coordinate(a) * stride(*this, a);
  for (int i = 0; i < size(a); ++i) ranks.push_back(first + i * stride(*this, a));
  return ranks;
}

}  // namespace ltrain
