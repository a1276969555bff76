// Division of layers into stages.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain::pipeline {

/// Numbers of consecutive layers by stage, at least one each, with the least cost of the most expensive
/// stage. Among such splits one with the least sum of squared costs, and among those the one with the
/// smallest early stages (they keep the most activations). `first` and `last`: extra costs of the first and
/// last stage, the embedding, and the output layer and loss. Exact, in O(stages * layers * log layers) for
/// the maximum. Throws Error (usage) if there are fewer layers than stages.
std::vector<int> split_layers(const std::vector<double>& layer_costs, double first, double last, int stages);

/// Moves single layers between stages while that makes the most expensive rank cheaper, or lowers the sum of
/// squares over ranks at the same maximum. If ranks hold several stages, their sum counts. A local optimum;
/// the given split if every rank holds one stage.
std::vector<int> balance_ranks(const std::vector<double>& layer_costs, double first, double last,
                               std::vector<int> counts, const std::vector<int>& rank_of_stage);

/// Empty if `counts` gives each of `stages` stages at least one of the `layers` layers, and all layers
/// together; else the error.
std::string split_rule(const std::vector<int64_t>& counts, int64_t layers, int64_t stages);

/// Cost of each stage of a split.
std::vector<double> stage_sums(const std::vector<double>& layer_costs, double first, double last,
                               const std::vector<int>& counts);

}  // namespace ltrain::pipeline
