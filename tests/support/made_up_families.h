// Families that differ from llama in one trait each, and in several: that layers obey every trait by itself.
#pragma once
#include <vector>

#include "models/families/family.h"

namespace ltrain::test {

const std::vector<Family>& made_up_families();

}  // namespace ltrain::test
