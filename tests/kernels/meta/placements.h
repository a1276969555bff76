// Short names of placements, for tables of rules.
#pragma once
#include "kernels/tensor/placement.h"

namespace ltrain::test {

inline const Placement R = Placement::R(), V = Placement::V(), P = Placement::P(), S0 = Placement::S(0),
                       S1 = Placement::S(1);

}  // namespace ltrain::test
