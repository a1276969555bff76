#include "kernels/core/tensor.h"

#include "kernels/core/placement.h"

namespace ltrain {

std::string to_string(const Shape& shape) {
  std::string s = "[";
  for (int i = 0; i < shape.rank; ++i) s += fmt::format("{}{}", i ? ", " : "", shape.dims[i]);
  return s + "]";
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
