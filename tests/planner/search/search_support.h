// Small models whose layouts tests search.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "planner/search/enumerate.h"
#include "planner/search/search.h"

namespace ltrain::test {

inline const char* const kDense =
    "name: tiny\ndevice: cuda\nprecision: bf16\n"
    "model: {architecture: llama, vocab_size: 32000, hidden_size: 1024, intermediate_size: 2816, "
    "num_hidden_layers: 8, num_attention_heads: 16, num_key_value_heads: 8, max_position_embeddings: 4096}\n"
    "data: {seq_length: 2048}\n"
    "train: {global_batch_size: 64, train_steps: 10}\n";
inline const char* const kMoe =
    "name: tiny\ndevice: cuda\nprecision: bf16\n"
    "model: {architecture: mixtral, vocab_size: 32000, hidden_size: 1024, intermediate_size: 2816, "
    "num_hidden_layers: 4, num_attention_heads: 16, num_key_value_heads: 8, max_position_embeddings: 4096, "
    "moe: {num_experts: 8, top_k: 2}}\n"
    "data: {seq_length: 2048}\n"
    "train: {global_batch_size: 32, train_steps: 10}\n";

/// Layers of two kinds.
inline const char* const kUneven =
    "name: tiny\ndevice: cuda\nprecision: bf16\n"
    "model: {architecture: mixtral, vocab_size: 32000, hidden_size: 1024, intermediate_size: 2816, "
    "num_hidden_layers: 6, num_attention_heads: 16, num_key_value_heads: 8, max_position_embeddings: 4096, "
    "moe: {num_experts: 8, top_k: 2, layer_step: 3}}\n"
    "data: {seq_length: 2048}\n"
    "train: {global_batch_size: 32, train_steps: 10}\n";

inline LoadRecipe reader(const std::string& text, std::vector<std::string> fixed = {}) {
  return [=](const std::vector<std::string>& settings) {
    std::vector<std::string> all = fixed;
    all.insert(all.end(), settings.begin(), settings.end());
    return parse_recipe(text, "tiny.yaml", all);
  };
}

inline SearchLimits on(int world, int per_node = 8) {
  SearchLimits limits;
  limits.world = world;
  limits.ranks_per_node = std::min(world, per_node);
  return limits;
}

inline std::vector<Layout> layouts(const Recipe& r, const SearchLimits& limits) {
  std::vector<Layout> all;
  for_each_layout(r, limits, [&](const Layout& l) { all.push_back(l); });
  return all;
}

inline Recipe with(const LoadRecipe& load, const Layout& l, const SearchLimits& limits) {
  std::vector<std::string> settings;
  for (const auto& [key, value] : settings_of(l, load({}))) settings.push_back(key + "=" + value);
  return resolve(load(settings), limits.world, limits.ranks_per_node);
}

}  // namespace ltrain::test
