// Which layers make a stage.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ltrain::pipeline {

/// Numbers of consecutive layers by stage, at least one each, so that the most expensive stage costs as
/// little as possible; among those splits one with the least sum of squared costs, and among those the one
/// whose early stages are smallest (they keep the most activations). `first` and `last` are what the first
/// and the last stage cost on top: the embedding, the output layer and the loss. Exact, in O(stages * layers
/// * log layers) for the maximum. Throws Error (usage) when there are fewer layers than stages.
std::vector<int> split_layers(const std::vector<double>& layer_costs, double first, double last, int stages);

/// Moves single layers between stages as long as that makes the most expensive rank cheaper, or the sum of
/// squares over ranks less at the same maximum: where a rank holds several stages, their sum is what counts.
/// A local optimum; the given split where every rank holds one stage.
std::vector<int> balance_ranks(const std::vector<double>& layer_costs, double first, double last,
                               std::vector<int> counts, const std::vector<int>& rank_of_stage);

/// "" when `counts` gives each of `stages` stages at least one of the `layers` layers and all of them
/// together, else what is wrong.
std::string split_rule(const std::vector<int64_t>& counts, int64_t layers, int64_t stages);

/// Cost of each stage of a split.
std::vector<double> stage_sums(const std::vector<double>& layer_costs, double first, double last,
                               const std::vector<int>& counts);

}  // namespace ltrain::pipeline
