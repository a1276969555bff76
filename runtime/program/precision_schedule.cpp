// What the phases of a run multiply in, and what they take.
#include <algorithm>

#include "runtime/program/recipe_program.h"

namespace ltrain {
namespace {

Products products_of(Precision p) {
  return p == Precision::fp8 ? Products::fp8 : p == Precision::tf32 ? Products::tf32 : Products::plain;
}

}  // namespace

Products products_at(const Recipe& r, int64_t step) { return products_of(precision_at(r, step)); }

void run_other_phases(const Recipe& r, TrainProgram& program) {
  std::vector<Products> done{products_at(r, 1)};
  for (const PrecisionPhase& phase : r.phases) {
    const Products products = products_of(phase.precision);
    if (std::find(done.begin(), done.end(), products) != done.end()) continue;
    done.push_back(products);
    program.multiply_in(products);
    program.train_step({}, AdamwArgs{});
  }
}

}  // namespace ltrain
