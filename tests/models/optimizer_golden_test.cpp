// The double-precision references that tests hold ltrain's optimizers against, against PyTorch's.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <sstream>

#include "tests/support/optimizer_reference.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kMatrixRows = 12, kCols = 8, kVector = 100;  // the vector's first index

double gradient(int64_t i, int step) {
  return std::cos(0.7 * static_cast<double>(i) + 1.3 * step) * std::pow(10.0, static_cast<double>(i % 3) - 1);
}

std::vector<double> train_tensors(UpdateRule rule) {
  OptimizerSettings o;
  o.rule = rule;
  o.sgd_nesterov = true;
  std::vector<double> out;
  for (const bool matrix : {true, false}) {
    const int64_t first = matrix ? 0 : kVector, n = matrix ? kMatrixRows * kCols : kCols;
    ReferenceTensor t;
    t.matrix = matrix;
    t.rows = matrix ? kMatrixRows : 1;
    t.cols = kCols;
    for (int64_t i = 0; i < n; ++i) t.w.push_back(std::sin(1.0 + static_cast<double>(first + i)));
    const bool moves = matrix || rule != UpdateRule::muon;  // PyTorch's has matrices alone
    for (int step = 1; step <= 20 && moves; ++step) {
      OptimizerStep a;
      a.lr = 0.02 / step;
      a.weight_decay = 0.1;
      a.step = step;
      std::vector<double> g;
      for (int64_t i = 0; i < n; ++i) g.push_back(gradient(first + i, step));
      reference_step(t, g, rule_of(o, {"tensor", matrix}), o, a);
    }
    out.insert(out.end(), t.w.begin(), t.w.end());
  }
  return out;
}

}  // namespace

TEST_CASE("references of optimizers equal PyTorch's over 20 steps") {
  std::ifstream in(LTRAIN_SOURCE_DIR "/tests/golden/torch_optimizers.txt");
  int found = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string name, number;
    words >> name;
    INFO(name);
    const std::vector<double> mine = train_tensors(update_rule(name).value());
    double worst = 0;
    size_t i = 0;
    for (; words >> number; ++i)
      worst = std::max(worst, std::abs(mine.at(i) - std::strtod(number.c_str(), nullptr)));
    CHECK(i == mine.size());
    CHECK(worst < 1e-11);
    ++found;
  }
  CHECK(found == 5);
}
