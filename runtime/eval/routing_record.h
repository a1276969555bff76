// Choices of a model's routers on held-out tokens, as JSON lines, beside those of an earlier record.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "models/layers/model_config.h"
#include "runtime/data/batch_loader.h"
#include "runtime/files/file.h"

namespace ltrain {

/// Choices of one layer's router for one sample of a set.
struct RoutedSample {
  std::vector<int32_t> tokens;   ///< ids; in the lines of each sample's first layer with experts
  std::vector<int32_t> experts;  ///< (tokens, k), best first; negative: the token has fewer
  int64_t top_k = 0;
  bool fewer = false;  ///< selection top_p: tokens have 1 to top_k experts
};

/// Place of a line: set, sample of the set, layer.
using RoutedPlace = std::tuple<std::string, int64_t, int64_t>;

/// Reads a record. Throws Error (data) with file and line for a line of another form.
std::map<RoutedPlace, RoutedSample> read_routing(const std::string& path);

/// Number of choices of a layer that differ from those of an earlier record.
struct RoutingChange {
  int64_t tokens = 0;
  int64_t first = 0;    ///< tokens with another best expert
  int64_t choices = 0;  ///< choices of experts that the token did not choose then
  int64_t all = 0;      ///< choices
  double first_share() const { return static_cast<double>(first) / static_cast<double>(tokens); }
  double choice_share() const { return static_cast<double>(choices) / static_cast<double>(all); }
};

/// Writes a record, and compares with an earlier one of the same tokens.
class RoutingRecord {
 public:
  /// `path`: the file to write; "": none. `before`: the file of an earlier record; "": none.
  RoutingRecord(const ModelConfig& model, int64_t step, const std::string& path, const std::string& before);
  /// Adds a batch of a set, and the choices for it: (layers with experts, tokens of the
  /// batch, k). Throws Error (data) if the earlier record has other tokens.
  void add(const std::string& set, const data::Batch& batch, const std::vector<int32_t>& choices);
  /// Gives the file its name. Throws Error (data) if the earlier record has samples that were not added.
  void commit();
  /// Changes of each layer; empty without an earlier record.
  const std::map<int64_t, RoutingChange>& changes() const { return changes_; }

 private:
  void compare(const RoutedPlace& place, const RoutedSample& now);

  const ModelConfig& model_;
  int64_t step_;
  std::optional<data::OutputFile> file_;
  std::string before_path_;
  std::map<RoutedPlace, RoutedSample> before_;
  std::map<int64_t, RoutingChange> changes_;
};

}  // namespace ltrain
