#include "runtime/routing/routing_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "base/printable.h"
#include "runtime/files/strict_json.h"

namespace ltrain {
namespace {

using nlohmann::json;

/// Throws the rule that a line breaks.
template <class... A>
[[noreturn]] void refuse(fmt::format_string<A...> text, A&&... args) {
  throw std::invalid_argument(fmt::format(text, std::forward<A>(args)...));
}

int64_t integer(const json& line, const char* key, int64_t low, int64_t high) {
  const auto at = line.find(key);
  if (at == line.end()) refuse("expected the key {}, got none", key);
  if (!at->is_number_integer() || (at->is_number_unsigned() && at->get<uint64_t>() > INT64_MAX))
    refuse("{}: expected an integer, got {}", key, printable(at->dump(), 60));
  const int64_t value = at->get<int64_t>();
  if (value < low || value > high) refuse("{} = {}: must be from {} to {}", key, value, low, high);
  return value;
}

/// Decoder layers with experts, in order.
std::vector<int64_t> decoder_layers(const ModelConfig& model) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < model.num_hidden_layers; ++i)
    if (model.has_experts(i)) layers.push_back(i);
  return layers;
}

int64_t layer_of(const json& line, const ModelConfig& model) {
  const auto at = line.find("block");
  if (at != line.end() && !at->is_string())
    refuse("block = {}: must be decoder or mtp", printable(at->dump(), 60));
  const std::string block = at == line.end() ? "decoder" : at->get<std::string>();
  if (block == "mtp") {
    if (model.num_nextn_predict_layers == 0)
      refuse("block = mtp: the model has no multi-token prediction (model.num_nextn_predict_layers: 0)");
    return model.num_hidden_layers + integer(line, "mtp_idx", 0, model.num_nextn_predict_layers - 1);
  }
  if (block != "decoder") refuse("block = {}: must be decoder or mtp", printable(block, 60));
  const int64_t layer = integer(line, "layer", 0, model.num_hidden_layers - 1);
  if (!model.has_experts(layer)) refuse("layer = {}: has no experts in this model", layer);
  return layer;
}

/// Each token has top_k different experts of the model.
void check_experts(const RoutedTokens& t, int64_t experts) {
  const auto layers = static_cast<int64_t>(t.layers.size());
  for (int64_t i = 0; i < t.tokens() * layers; ++i) {
    const int32_t* of = t.experts.data() + i * t.top_k;
    const auto where = [&] {
      return fmt::format("position {}, layer {}", t.position + i / layers,
                         t.layers[static_cast<size_t>(i % layers)]);
    };
    for (int64_t j = 0; j < t.top_k; ++j) {
      if (of[j] < 0 || of[j] >= experts)
        refuse("{}: expert {}: must be from 0 to {}", where(), of[j], experts - 1);
      if (std::find(of, of + j, of[j]) != of + j) refuse("{}: duplicate expert {}", where(), of[j]);
    }
  }
}

void read_top_indices(const json& line, const ModelConfig& model, int64_t step, RoutedTokens& to) {
  to.step = integer(line, "step", 0, INT64_MAX);
  if (to.step != step) refuse("step = {}: must be that of its folder, {}", to.step, step);
  to.layers = {layer_of(line, model)};
  integer(line, "topk", to.top_k, to.top_k);
  to.experts = parse_indices(line.at("top_indices"), to.top_k);
  integer(line, "num_tokens", to.tokens(), to.tokens());
}

void read_routed_experts(const json& line, const ModelConfig& model, RoutedTokens& to) {
  to.partial = true;
  to.layers = decoder_layers(model);
  const json& tokens = line.at("routed_experts");
  if (!tokens.is_array()) refuse("routed_experts: must be a list of tokens");
  for (const json& layers : tokens) {
    if (!layers.is_array() || layers.size() != to.layers.size())
      refuse("routed_experts: a token must have {} layers with experts, got {}", to.layers.size(),
             layers.is_array() ? layers.size() : 0);
    const std::vector<int32_t> experts = parse_indices(layers, to.top_k);
    to.experts.insert(to.experts.end(), experts.begin(), experts.end());
  }
}

}  // namespace

nlohmann::ordered_json indices_json(std::span<const int32_t> experts, int64_t top_k) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < experts.size(); i += static_cast<size_t>(top_k)) {
    const auto of = experts.subspan(i, static_cast<size_t>(top_k));
    std::vector<int32_t> chosen;
    std::copy_if(of.begin(), of.end(), std::back_inserter(chosen), [](int32_t e) { return e >= 0; });
    rows.push_back(chosen);
  }
  return rows;
}

std::vector<int32_t> parse_indices(const json& rows, int64_t top_k, bool fewer) {
  if (!rows.is_array()) refuse("top_indices: must be a list of tokens");
  std::vector<int32_t> experts;
  for (const json& row : rows) {
    const auto size = static_cast<int64_t>(row.is_array() ? row.size() : 0);
    if (fewer ? size < 1 || size > top_k : size != top_k)
      refuse("a token must have {}topk = {} experts, got {}", fewer ? "1 to " : "", top_k, size);
    for (const json& e : row) {
      if (!e.is_number_integer() || e.get<double>() < INT32_MIN || e.get<double>() > INT32_MAX)
        refuse("an expert must be an integer, got {}", printable(e.dump(), 60));
      experts.push_back(e.get<int32_t>());
    }
    experts.insert(experts.end(), static_cast<size_t>(top_k - size), -1);
  }
  return experts;
}

int64_t changed_choices(std::span<const int32_t> now, std::span<const int32_t> before, int64_t top_k) {
  int64_t changed = 0;
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i] < 0) continue;
    const auto of_token = before.subspan(i - i % static_cast<size_t>(top_k), static_cast<size_t>(top_k));
    changed += std::find(of_token.begin(), of_token.end(), now[i]) == of_token.end();
  }
  return changed;
}

std::string line_of(const ModelConfig& model, const RoutedTokens& t) {
  const int64_t layer = t.layers.at(0), module = layer - model.num_hidden_layers;
  nlohmann::ordered_json line{{"step", t.step},
                              {"stage", "pre_dispatch"},
                              {"block", module < 0 ? "decoder" : "mtp"},
                              {"layer", module < 0 ? layer : 0}};
  if (module >= 0) line["mtp_idx"] = module;
  line["rank"] = t.rank;
  line["sample"] = t.sample;
  line["position"] = t.position;
  line["num_tokens"] = t.tokens();
  line["topk"] = t.top_k;
  line["top_indices"] = indices_json(t.experts, t.top_k);
  return line.dump() + "\n";
}

RoutedTokens parse_routed_line(const std::string& text, const ModelConfig& model, int64_t seq_length,
                               int64_t step) {
  constexpr int kDepth = 5;
  std::string error;
  const json line = data::parse_strict(text, kDepth, error);
  if (!error.empty()) refuse("{}", error);
  if (!line.is_object()) refuse("must be a JSON object");
  RoutedTokens t;
  t.top_k = model.moe.top_k;
  const bool all_layers = line.contains("routed_experts");
  if (!all_layers && !line.contains("top_indices")) refuse("has neither top_indices nor routed_experts");
  if (!line.contains("sample"))
    refuse(
        "has no sample: a trace of Megatron-LM orders tokens by rank; add sample (its number in the run) and "
        "position");
  t.sample = integer(line, "sample", 0, INT64_MAX);
  t.position = line.contains("position") ? integer(line, "position", 0, seq_length - 1) : 0;
  all_layers ? read_routed_experts(line, model, t) : read_top_indices(line, model, step, t);
  if (t.tokens() == 0) refuse("must have at least one token");
  if (t.position + t.tokens() > seq_length)
    refuse("position {} and {} tokens are beyond the {} of a sample (data.seq_length)", t.position,
           t.tokens(), seq_length);
  check_experts(t, model.moe.router_outputs());
  return t;
}

}  // namespace ltrain
