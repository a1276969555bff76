#include "kernels/tensor/tensor.h"

#include <vector>

#include "kernels/tensor/placement.h"

namespace ltrain {

std::string to_string(const Shape& shape) {
  std::string s = "[";
  for (int i = 0; i < shape.rank; ++i) s += fmt::format("{}{}", i ? ", " : "", shape.dims[i]);
  return s + "]";
}

std::string_view axis_set_name(AxisSet axes) {
  // Names indexed by the bits: data 1, pipeline 2, context 4, ..., column 256.
  static const std::vector<std::string>* names = [] {
    auto* all = new std::vector<std::string>;  // never destroyed: traces keep views of it
    for (int bits = 0; bits < 1 << kAxisCount; ++bits) {
      std::string name;
      for (int i = 0; i < kAxisCount; ++i)
        if (bits >> i & 1) name += (name.empty() ? "" : "+") + std::string(axis_name(static_cast<Axis>(i)));
      all->push_back(bits == kAllAxes.bits ? "world" : name);
    }
    return all;
  }();
  return (*names)[axes.bits];
}

std::string to_string(Placement p) {
  switch (p.kind) {
    case Placement::replicated:
      return "R";
    case Placement::sharded:
      return fmt::format("S({})", p.dim);
    case Placement::varying:
      return "V";
    case Placement::partial:
      return "P";
  }
  return "?";
}

}  // namespace ltrain
