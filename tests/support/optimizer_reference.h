// Reference of each optimizer on full tensors, in double, written from the papers and from PyTorch's
// definitions.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "parallel/optim/optimizer.h"

namespace ltrain::test {

struct ReferenceTensor {
  int64_t rows = 1, cols = 1;  ///< rows 1: a vector
  bool matrix = false;
  std::vector<double> w, m, v;   ///< value, first and second moment
  std::vector<double> row, col;  ///< Adafactor
};

/// One step. `gradient` is whole; args.grad_scale has been applied by the caller if at all.
void reference_step(ReferenceTensor& t, const std::vector<double>& gradient, const ParameterRule& rule,
                    const OptimizerSettings& settings, const OptimizerStep& args);

}  // namespace ltrain::test
