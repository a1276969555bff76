// Covering arrays of strength 3: few rows, in which every three levels of three factors that can be together
// are together in some row.
#pragma once
#include <string>
#include <vector>

namespace ltrain::test {

struct Factor {
  std::string name;
  std::vector<std::string> levels;
};
/// The level of each factor.
using Row = std::vector<int>;

/// Rows for `factors`. `allowed`: what the first factors may be together, each a Row of as many of them; the
/// others are free. Deterministic. Greedy: each row is the best of many that cover one of the triples left.
std::vector<Row> covering_array(const std::vector<Factor>& factors, const std::vector<Row>& allowed);

}  // namespace ltrain::test
