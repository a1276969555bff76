// JSON lines of routers' choices, with the keys of Megatron-LM's router trace, or with vLLM's routed_experts.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "models/layers/model_config.h"

namespace ltrain {

/// top_indices of a line: a list of `top_k` experts for each token. Negative ones are left out: the token has
/// fewer.
nlohmann::ordered_json indices_json(std::span<const int32_t> experts, int64_t top_k);
/// Reads them. Throws std::invalid_argument with a rule if a list has another length or is not of integers.
/// `fewer`: a list may have from 1 to `top_k` experts, and -1 stands for those that it lacks.
std::vector<int32_t> parse_indices(const nlohmann::json& rows, int64_t top_k, bool fewer = false);

/// Number of choices in `now` of experts that their token, of `top_k` choices, did not choose `before`.
/// Negative entries stand for no choice.
int64_t changed_choices(std::span<const int32_t> now, std::span<const int32_t> before, int64_t top_k);

/// Choices for consecutive positions of a sample.
struct RoutedTokens {
  int64_t step = 0, rank = 0;
  int64_t sample = 0, position = 0;  ///< global sample; first position
  int64_t top_k = 0;
  std::vector<int64_t> layers;   ///< numbers in the full model; modules of multi-token prediction come last
  std::vector<int32_t> experts;  ///< (tokens, layers, top_k)
  bool partial = false;          ///< routed_experts: positions without a record choose for themselves
  int64_t tokens() const {
    return static_cast<int64_t>(experts.size()) / (static_cast<int64_t>(layers.size()) * top_k);
  }
};

/// Line of one layer, with its end.
std::string line_of(const ModelConfig& model, const RoutedTokens& tokens);

/// Reads a line of a step's record: top_indices of one layer, or routed_experts (tokens, layers with experts,
/// top_k). Throws std::invalid_argument with the rule if it does not fit the model, sequences of
/// `seq_length` tokens, or the step.
RoutedTokens parse_routed_line(const std::string& text, const ModelConfig& model, int64_t seq_length,
                               int64_t step);

}  // namespace ltrain
