// Matmul precision of each phase of a run.
#include <algorithm>

#include "runtime/program/recipe_program.h"

namespace ltrain {
namespace {

MatmulPrecision matmul_precision_of(Precision p) {
  return p == Precision::fp8    ? MatmulPrecision::fp8
         : p == Precision::tf32 ? MatmulPrecision::tf32
                                : MatmulPrecision::plain;
}

}  // namespace

MatmulPrecision matmul_precision_at(const Recipe& r, int64_t step) {
  return matmul_precision_of(precision_at(r, step));
}

void run_other_precisions(const Recipe& r, TrainProgram& program, int64_t site) {
  const auto micros = static_cast<size_t>(micro_batches_of_site(r, site));
  std::vector<MatmulPrecision> done{matmul_precision_at(r, 1)};
  for (const PrecisionScheduleEntry& phase : r.phases) {
    const MatmulPrecision products = matmul_precision_of(phase.precision);
    if (std::find(done.begin(), done.end(), products) != done.end()) continue;
    done.push_back(products);
    program.set_matmul_precision(products);
    program.train_step(std::vector<HostBatch>(micros), OptimizerStep{});
    run_smaller_steps(r, program, site);
  }
}

}  // namespace ltrain
