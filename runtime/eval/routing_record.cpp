#include "runtime/eval/routing_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/routing/routing_lines.h"

namespace ltrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostExperts = 65536;          // choices of a token, as in recipes
constexpr size_t kMostPadded = size_t{1} << 26;  // choices of a line

/// One line: the keys of Megatron-LM's router trace (step, layer, num_tokens, topk, top_indices), and those
/// of the held-out data.
std::string line_of(int64_t step, const RoutedPlace& place, const RoutedSample& s) {
  const auto& [set, sample, layer] = place;
  const auto tokens = static_cast<int64_t>(s.experts.size()) / s.top_k;
  Json line{{"step", step},
            {"set", set},
            {"sample", sample},
            {"layer", layer},
            {"num_tokens", tokens},
            {"topk", s.top_k},
            {"top_indices", indices_json(s.experts, s.top_k)}};
  if (s.fewer) line["selection"] = to_string(Selection::top_p);
  if (!s.tokens.empty()) line["tokens"] = s.tokens;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::pair<RoutedPlace, RoutedSample> parse_line(const std::string& text) {
  const auto line = nlohmann::json::parse(text);
  RoutedSample s;
  s.top_k = line.at("topk").get<int64_t>();
  if (s.top_k < 1 || s.top_k > kMostExperts)
    throw std::out_of_range(fmt::format("topk must be from 1 to {}", kMostExperts));
  s.fewer = line.contains("selection") && line["selection"] == to_string(Selection::top_p);
  // Rows of fewer experts are padded.
  if (s.fewer && line.at("top_indices").size() > kMostPadded / static_cast<size_t>(s.top_k))
    throw std::out_of_range(fmt::format("more than {} choices in a line", kMostPadded));
  s.experts = parse_indices(line.at("top_indices"), s.top_k, s.fewer);
  if (line.contains("tokens")) s.tokens = line["tokens"].get<std::vector<int32_t>>();
  return {
      {line.at("set").get<std::string>(), line.at("sample").get<int64_t>(), line.at("layer").get<int64_t>()},
      std::move(s)};
}

}  // namespace

std::map<RoutedPlace, RoutedSample> read_routing(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail(ExitCode::data, "{}: cannot be read", printable(path));
  std::map<RoutedPlace, RoutedSample> all;
  int64_t number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    try {
      if (!all.insert(parse_line(text)).second)
        throw std::out_of_range("its set, sample and layer came before");
    } catch (const std::exception& e) {
      fail(ExitCode::data, "{}:{}: is not a line of `ltrain eval --routing`: {}", printable(path), number,
           printable(e.what(), 200));
    }
  }
  return all;
}

RoutingRecord::RoutingRecord(const ModelConfig& model, int64_t step, const std::string& path,
                             const std::string& before)
    : model_(model), step_(step), before_path_(before) {
  if (!path.empty()) file_.emplace(path);
  if (!before.empty()) before_ = read_routing(before);
}

void RoutingRecord::compare(const RoutedPlace& place, const RoutedSample& now) {
  const auto& [set, sample, layer] = place;
  const auto found = before_.find(place);
  const bool same = found != before_.end() && found->second.tokens == now.tokens &&
                    found->second.experts.size() == now.experts.size() && found->second.top_k == now.top_k;
  if (!same)
    fail(ExitCode::data,
         "{}: sample {} of set \"{}\", layer {}: expected the tokens, layers and topk of this evaluation: "
         "record "
         "both with the same --data, --samples and --seq-length",
         printable(before_path_), sample, printable(set), layer);
  RoutingChange& change = changes_[layer];
  for (size_t t = 0; t < now.experts.size(); t += static_cast<size_t>(now.top_k)) {
    ++change.tokens;
    change.first += now.experts[t] != found->second.experts[t];
    for (int64_t j = 0; j < now.top_k; ++j) change.all += now.experts[t + static_cast<size_t>(j)] >= 0;
  }
  change.choices += changed_choices(now.experts, found->second.experts, now.top_k);
  before_.erase(found);
}

void RoutingRecord::add(const std::string& set, const data::Batch& batch,
                        const std::vector<int32_t>& choices) {
  const auto samples = static_cast<int64_t>(batch.sample_index.size());
  const int64_t length = static_cast<int64_t>(batch.tokens.size()) / samples, k = model_.moe.top_k;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t sample = batch.sample_index[static_cast<size_t>(i)];
    if (sample < 0) continue;  // padding of the last batch
    int64_t record = 0;        // number of the layer among those with experts
    for (int64_t layer = 0; layer < model_.num_hidden_layers; ++layer) {
      if (!model_.moe.in_layer(layer)) continue;
      RoutedSample s;
      s.top_k = k;
      s.fewer = model_.moe.selection == Selection::top_p;
      const auto from = choices.begin() + (record * samples + i) * length * k;
      s.experts.assign(from, from + length * k);
      if (record++ == 0)
        s.tokens.assign(batch.tokens.begin() + i * length, batch.tokens.begin() + (i + 1) * length);
      const RoutedPlace place{set, sample, layer};
      if (file_) {
        const std::string line = line_of(step_, place, s);
        file_->write(line.data(), static_cast<int64_t>(line.size()));
      }
      if (!before_path_.empty()) compare(place, s);
    }
  }
}

void RoutingRecord::commit() {
  if (!before_.empty())
    fail(ExitCode::data,
         "{}: has {} lines of samples that were not evaluated now: record both with the same --samples",
         printable(before_path_), before_.size());
  if (file_) file_->commit();
}

}  // namespace ltrain
