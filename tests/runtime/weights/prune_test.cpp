// Checkpoints with fewer layers and narrower feed-forwards.
#include "runtime/weights/prune.h"

#include <catch2/catch.hpp>
#include <set>

#include "tests/runtime/weights/support.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

using Values = std::vector<double>;

PruneReport prune(const TemporaryFolder& t, const std::string& to, std::vector<int64_t> layers,
                  int64_t neurons) {
  PruneOptions o;
  o.checkpoint = t.path() + "/old";
  o.made = t.path() + "/" + to;
  o.layers = std::move(layers);
  o.intermediate_size = neurons;
  return prune_checkpoint(o);
}

/// Neurons with the largest products of norms, from the definition. `rows`: tensors with a row for each
/// neuron, or for each neuron of gate and then of up.
std::vector<size_t> largest_neurons(const std::vector<std::pair<const Values*, const Values*>>& layers,
                                    const Values& down, size_t neurons, size_t hidden, size_t kept) {
  std::vector<std::pair<double, size_t>> order;
  for (size_t n = 0; n < neurons; ++n) {
    double product = 1, squares = 0;
    for (size_t h = 0; h < hidden; ++h) squares += down[h * neurons + n] * down[h * neurons + n];
    product *= std::sqrt(squares);
    for (const auto& [weight, bias] : layers)
      for (size_t row = n; row < weight->size() / hidden; row += neurons) {
        squares = bias ? (*bias)[row] * (*bias)[row] : 0;
        for (size_t h = 0; h < hidden; ++h)
          squares += (*weight)[row * hidden + h] * (*weight)[row * hidden + h];
        product *= std::sqrt(squares);
      }
    order.emplace_back(-product, n);
  }
  std::sort(order.begin(), order.end());
  std::vector<size_t> result;
  for (size_t i = 0; i < kept; ++i) result.push_back(order[i].second);
  std::sort(result.begin(), result.end());
  return result;
}

/// Checks the feed-forward of a layer, whose tensors begin with `was` before and with `is` after.
void check_feed_forward(const WholeCheckpoint& old, const WholeCheckpoint& made, const std::string& was,
                        const std::string& is, size_t kept) {
  const ModelConfig& m = old.recipe.model;
  const ParameterNames& names = m.names();
  const auto neurons = static_cast<size_t>(m.intermediate_size), hidden = static_cast<size_t>(m.hidden_size);
  std::vector<std::pair<const Values*, const Values*>> layers;
  std::vector<std::string> parts;
  for (const std::string& part : {names.fused_gate_up, names.gate, names.up}) {
    if (part.empty() || !old.tensors.count(was + part + ".weight")) continue;
    const auto bias = old.tensors.find(was + part + ".bias");
    layers.emplace_back(&old.tensors.at(was + part + ".weight"),
                        bias == old.tensors.end() ? nullptr : &bias->second);
    parts.push_back(part);
  }
  REQUIRE(!layers.empty());
  const Values& down = old.tensors.at(was + names.down + ".weight");
  const std::vector<size_t> chosen = largest_neurons(layers, down, neurons, hidden, kept);
  for (size_t i = 0; i < layers.size(); ++i) {
    Values weight, bias;
    for (size_t first = 0; first < layers[i].first->size() / hidden; first += neurons)
      for (const size_t n : chosen) {
        const auto at = layers[i].first->begin() + static_cast<int64_t>((first + n) * hidden);
        weight.insert(weight.end(), at, at + static_cast<int64_t>(hidden));
        if (layers[i].second) bias.push_back((*layers[i].second)[first + n]);
      }
    CHECK(made.tensors.at(is + parts[i] + ".weight") == weight);
    if (layers[i].second) CHECK(made.tensors.at(is + parts[i] + ".bias") == bias);
  }
  Values columns;
  for (size_t h = 0; h < hidden; ++h)
    for (const size_t n : chosen) columns.push_back(down[h * neurons + n]);
  CHECK(made.tensors.at(is + names.down + ".weight") == columns);
}

}  // namespace

TEST_CASE("pruned layers are renumbered, and the neurons of largest weights stay, in every dense family",
          "[weights]") {
  std::set<std::string> families;
  for (const auto& [name, model] : (--golden().end()).value().items()) {
    const TemporaryFolder t;
    write_folder(t.path() + "/in", model["config"], random_tensors(model));
    import_folder(t.path() + "/in", t.path() + "/old");
    const WholeCheckpoint old = read_whole_checkpoint(t.path() + "/old");
    const ModelConfig& m = old.recipe.model;
    if (m.moe.num_experts > 0) continue;
    INFO(name);
    families.insert(m.family->name);
    std::vector<int64_t> layers;
    for (int64_t i = 0; i < m.num_hidden_layers; ++i)
      if (i != 1) layers.push_back(i);
    const int64_t neurons = m.intermediate_size - 11;
    const PruneReport report = prune(t, "new", layers, neurons);
    CHECK(report.dropped_layers == std::vector<int64_t>{1});
    const WholeCheckpoint made = read_whole_checkpoint(t.path() + "/new");
    const ModelConfig& small = made.recipe.model;
    CHECK(small.intermediate_size == neurons);
    REQUIRE(small.num_hidden_layers == m.num_hidden_layers - 1);
    for (size_t i = 0; i < layers.size(); ++i) {
      CHECK(small.rotates(static_cast<int64_t>(i)) == m.rotates(layers[i]));
      CHECK(small.window(static_cast<int64_t>(i)) == m.window(layers[i]));
      const ParameterNames& names = m.names();
      check_feed_forward(old, made, names.layer(layers[i]) + "." + names.feed_forward + ".",
                         names.layer(static_cast<int64_t>(i)) + "." + names.feed_forward + ".",
                         static_cast<size_t>(neurons));
    }
    // Everything else is unchanged under its new number.
    size_t expected = 0;
    for (const auto& [tensor, values] : old.tensors) {
      const int64_t layer = layer_of(m, tensor);
      if (layer == 1) continue;
      ++expected;
      const std::string now =
          layer < 0 ? tensor
                    : m.names().layer(layer - (layer > 1)) + tensor.substr(m.names().layer(layer).size());
      INFO(tensor);
      REQUIRE(made.tensors.count(now) == 1);
      CHECK(made.types.at(now) == old.types.at(tensor));
      if (tensor.find("." + m.names().feed_forward + ".") == std::string::npos)
        CHECK(made.tensors.at(now) == values);
    }
    CHECK(made.tensors.size() == expected);
    // An export reads its config.json back.
    CHECK_NOTHROW(export_to(t.path() + "/new", t.path() + "/out"));
    prune(t, "second", {1}, 0);
    CHECK(read_whole_checkpoint(t.path() + "/second").recipe.model.window(0) == m.window(1));
    CHECK_NOTHROW(export_to(t.path() + "/second", t.path() + "/second-out"));
  }
  CHECK(families.size() >= 9);
}

TEST_CASE("models, layers and widths that cannot be pruned are refused with what would work", "[weights]") {
  const json& models = (--golden().end()).value();
  struct Case {
    const char* model;
    std::vector<int64_t> layers;
    int64_t neurons;
    const char* text;
  };
  for (const Case& c :
       {Case{.model = "llama",
       .layers = {},
       .neurons = 0,
       .text = "nothing to prune: give --layers or --layers-keep, --intermediate-size or both"},
        Case{.model = "llama",
        .layers = {0, 2},
        .neurons = 0,
        .text = "--layers: there is no layer 2: the model has layers 0 to 1"},
        Case{.model = "llama",
        .layers = {},
        .neurons = 49,
        .text = "the model has 48, and pruning makes it smaller; nearest valid value: 48"},
        Case{.model = "llama", .layers = {0, 1}, .neurons = 48, .text = "has this shape already"},
        Case{.model = "mixtral",
        .layers = {0},
        .neurons = 0,
        .text = "experts in a layer, and pruning is built for dense models alone"}}) {
    const TemporaryFolder t;
    write_folder(t.path() + "/in", models[c.model]["config"], random_tensors(models[c.model]));
    import_folder(t.path() + "/in", t.path() + "/old");
    INFO(c.text);
    CHECK_THROWS_WITH(prune(t, "new", c.layers, c.neurons), Contains(c.text));
    CHECK(!path_exists(t.path() + "/new"));
  }
  CHECK(parse_layers("0-2,5,7-7", "--layers") == std::vector<int64_t>{0, 1, 2, 5, 7});
  for (const char* wrong :
       {"", "1,", ",1", "2-1", "1,1", "3,2", "-1", "0-", "a", "0 1", "99999999999999999999"})
    CHECK_THROWS_WITH(parse_layers(wrong, "--layers"),
                      Contains("expected ascending numbers of layers, from 0"));
}
