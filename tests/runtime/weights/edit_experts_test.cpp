// Checkpoints with fewer experts, and with copies of them.
#include "runtime/weights/edit_experts.h"

#include <catch2/catch.hpp>
#include <set>

#include "runtime/weights/align_neurons.h"
#include "tests/runtime/weights/support.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

using Values = std::vector<double>;

EditExpertsReport edit(const TemporaryFolder& t, const std::string& to,
                       const std::function<void(EditExpertsOptions&)>& change) {
  EditExpertsOptions o;
  o.checkpoint = t.path() + "/old";
  o.made = t.path() + "/" + to;
  change(o);
  return edit_experts(o);
}

/// Rows of expert `e` of a tensor that has a row for each of `experts`.
Values rows(const Values& all, int64_t experts, int64_t e) {
  const auto n = static_cast<int64_t>(all.size()) / experts;
  return {all.begin() + e * n, all.begin() + (e + 1) * n};
}

bool of_experts(const std::string& name) { return name.find(".experts.") != std::string::npos; }
bool of_router(const ModelConfig& m, const std::string& name) {
  return name.find("." + m.names().moe + "." + m.names().router + ".") != std::string::npos;
}

/// Most choices for the last experts of even layers, and for the first ones of odd layers.
ExpertUse use_of(const ModelConfig& m) {
  ExpertUse use;
  for (int64_t layer = 0; layer < m.num_hidden_layers; ++layer)
    for (int64_t e = 0; m.moe.in_layer(layer) && e < m.moe.num_experts; ++e)
      use[layer].push_back(layer % 2 ? 100 - e : 10 + e);
  return use;
}

/// Neurons of expert `b` in the order of those of `a` that they resemble, by the definition.
std::vector<int64_t> resembling(const WholeCheckpoint& c, const std::string& block, int64_t a, int64_t b) {
  const ModelConfig& m = c.recipe.model;
  const int64_t n = m.moe.intermediate_size, h = m.hidden_size;
  std::vector<double> sums(static_cast<size_t>(n * n));
  for (const auto& [name, values] : c.tensors) {
    if (!name.starts_with(block + ".experts.") || name.ends_with("bias")) continue;
    const bool down = name.find("down") != std::string::npos;
    const Values x = rows(values, m.moe.num_experts, a), y = rows(values, m.moe.num_experts, b);
    const int64_t matrices = static_cast<int64_t>(x.size()) / (n * h);
    const auto element = [&](const Values& v, int64_t matrix, int64_t neuron, int64_t k) {
      return v[static_cast<size_t>(down ? k * n + neuron : (matrix * n + neuron) * h + k)];
    };
    for (int64_t matrix = 0; matrix < matrices; ++matrix)
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j)
          for (int64_t k = 0; k < h; ++k)
            sums[static_cast<size_t>(i * n + j)] += element(x, matrix, i, k) * element(y, matrix, j, k);
  }
  return best_assignment({sums.begin(), sums.end()}, n);
}

/// Elements of an expert's tensor with its neurons in another order.
Values in_order(const Values& v, const ModelConfig& m, const std::string& name,
                const std::vector<int64_t>& order) {
  const bool down = name.find("down") != std::string::npos, bias = name.ends_with("bias");
  if (down && bias) return v;
  const int64_t n = m.moe.intermediate_size, h = down || bias ? 1 : m.hidden_size;
  Values out(v.size());
  for (int64_t i = 0; i < static_cast<int64_t>(v.size()); ++i) {
    const int64_t neuron = i / h % n;
    out[static_cast<size_t>(i)] =
        v[static_cast<size_t>(i + (order[static_cast<size_t>(neuron)] - neuron) * h)];
  }
  return out;
}

void import_model(const TemporaryFolder& t, const json& model) {
  write_folder(t.path() + "/in", model["config"], random_tensors(model));
  import_folder(t.path() + "/in", t.path() + "/old");
}

}  // namespace

TEST_CASE("experts of every family are left out, merged and copied by the definition", "[weights]") {
  std::set<std::string> families;
  for (const auto& [name, model] : (--golden().end()).value().items()) {
    if (!model["config"].contains("num_local_experts") && !model["config"].contains("num_experts") &&
        !model["config"].contains("n_routed_experts"))
      continue;
    const TemporaryFolder t;
    import_model(t, model);
    const WholeCheckpoint old = read_whole_checkpoint(t.path() + "/old");
    const ModelConfig& m = old.recipe.model;
    if (m.num_nextn_predict_layers > 0 || m.moe.n_group > 1) continue;
    INFO(name);
    families.insert(m.family->name);
    const int64_t all = m.moe.num_experts, keep = all - 1;
    REQUIRE(keep >= m.moe.top_k);
    const ExpertUse use = use_of(m);
    for (const ExpertEdit kind : {ExpertEdit::prune, ExpertEdit::merge, ExpertEdit::add}) {
      INFO(to_string(kind));
      const std::string folder = std::string(to_string(kind));
      const EditExpertsReport report = edit(t, folder, [&](EditExpertsOptions& o) {
        o.edit = kind;
        if (kind != ExpertEdit::add) o.experts = keep, o.use = use;
      });
      const WholeCheckpoint made = read_whole_checkpoint(t.path() + "/" + folder);
      const int64_t now = kind == ExpertEdit::add ? 2 * all : keep;
      CHECK(made.recipe.model.moe.num_experts == now);
      CHECK(made.recipe.model.moe.top_k == (kind == ExpertEdit::add ? 2 : 1) * m.moe.top_k);
      REQUIRE(made.tensors.size() == old.tensors.size());
      for (const auto& [tensor, values] : old.tensors) {
        INFO(tensor);
        const Values& got = made.tensors.at(tensor);
        const int64_t layer = layer_of(m, tensor);
        if (!of_experts(tensor) && !(layer >= 0 && m.moe.in_layer(layer) && of_router(m, tensor))) {
          CHECK(got == values);
          continue;
        }
        // The least chosen expert: the first of even layers, the last of odd ones.
        const int64_t out = layer % 2 ? all - 1 : 0;
        const std::vector<int64_t>* merged = nullptr;
        for (int64_t e = 0; e < now; ++e) {
          const auto& origins = report.origins.at(layer).at(static_cast<size_t>(e));
          const int64_t own = kind == ExpertEdit::add ? e / 2 : e + (e >= out);
          REQUIRE(origins.front() == own);
          if (origins.size() > 1) merged = &origins;
          if (origins.size() == 1 || of_router(m, tensor)) CHECK(rows(got, now, e) == rows(values, all, own));
        }
        CHECK((merged != nullptr) == (kind == ExpertEdit::merge));
        if (!merged || of_router(m, tensor)) continue;
        CHECK(*merged == std::vector<int64_t>{merged->front(), out});
        const Values a = rows(values, all, merged->front()),
                     b = in_order(
                         rows(values, all, out), m, tensor,
                         resembling(old, tensor.substr(0, tensor.find(".experts.")), merged->front(), out));
        const auto& n = use.at(layer);
        const auto na = static_cast<double>(n[static_cast<size_t>(merged->front())]),
                   nb = static_cast<double>(n[static_cast<size_t>(out)]);
        const Values mean = rows(got, now, merged->front() - (merged->front() > out));
        const double digits = made.types.at(tensor) == DType::f32 ? 1e-6 : 1e-2;
        for (size_t i = 0; i < mean.size(); ++i)
          REQUIRE(std::abs(mean[i] - (na * a[i] + nb * b[i]) / (na + nb)) <=
                  digits * (std::abs(a[i]) + std::abs(b[i])));
      }
    }
  }
  CHECK(families.size() >= 4);
}

TEST_CASE("an expert is merged into the one with the most similar router row", "[weights]") {
  const TemporaryFolder t;
  const json& model = (--golden().end()).value()["mixtral"];
  Tensors tensors = random_tensors(model);
  const int64_t layers = model["config"]["num_hidden_layers"], experts = model["config"]["num_local_experts"];
  for (int64_t layer = 0; layer < layers; ++layer) {  // the row of expert 0 is that of the last one
    Made& gate = tensors.at("model.layers." + std::to_string(layer) + ".block_sparse_moe.gate.weight");
    const auto row = static_cast<int64_t>(gate.bytes.size()) / experts;
    std::copy_n(gate.bytes.begin() + (experts - 1) * row, row, gate.bytes.begin());
  }
  write_folder(t.path() + "/in", model["config"], tensors);
  import_folder(t.path() + "/in", t.path() + "/old");
  ExpertUse use;
  for (int64_t layer = 0; layer < layers; ++layer) {
    use[layer] = std::vector<double>(static_cast<size_t>(experts), 3);
    use[layer].front() = 1;
  }
  const EditExpertsReport report = edit(t, "new", [&](EditExpertsOptions& o) {
    o.edit = ExpertEdit::merge, o.experts = experts - 1, o.use = use;
  });
  for (const auto& [layer, origins] : report.origins)
    CHECK(origins.back() == std::vector<int64_t>{experts - 1, 0});
  CHECK(report.kept_use == Approx(1 - 1.0 / static_cast<double>(3 * experts - 2)));
}

TEST_CASE("an expert whose neurons were shuffled is merged into the one that it was without a change",
          "[weights]") {
  const TemporaryFolder t;
  const json& model = (--golden().end()).value()["mixtral"];
  Tensors tensors = random_tensors(model);
  const int64_t layers = model["config"]["num_hidden_layers"], experts = model["config"]["num_local_experts"],
                n = model["config"]["intermediate_size"];
  const auto neuron = [n](int64_t i) { return (i * 5 + 3) % n; };
  REQUIRE(n % 5 != 0);  // each neuron once
  ExpertUse use;
  for (int64_t layer = 0; layer < layers; ++layer) {
    use[layer] = std::vector<double>(static_cast<size_t>(experts), 3);
    use[layer].back() = 1;
    const std::string block = "model.layers." + std::to_string(layer) + ".block_sparse_moe.";
    Made& gate = tensors.at(block + "gate.weight");
    const auto row = static_cast<int64_t>(gate.bytes.size()) / experts;
    std::copy_n(gate.bytes.end() - 2 * row, row, gate.bytes.end() - row);
    for (const char* matrix : {"w1", "w2", "w3"}) {
      const auto name = [&](int64_t e) {
        return block + "experts." + std::to_string(e) + "." + matrix + ".weight";
      };
      const Made& before = tensors.at(name(experts - 2));
      Made& after = tensors.at(name(experts - 1));
      const bool down = matrix[1] == '2';  // (H, F): neurons are columns
      const int64_t of_neuron =
          down ? dtype_size(before.dtype) : static_cast<int64_t>(before.bytes.size()) / n;
      for (int64_t i = 0; i < static_cast<int64_t>(before.bytes.size()) / of_neuron; ++i)
        std::copy_n(before.bytes.begin() + i * of_neuron, of_neuron,
                    after.bytes.begin() + (i - i % n + neuron(i % n)) * of_neuron);
    }
  }
  write_folder(t.path() + "/in", model["config"], tensors);
  import_folder(t.path() + "/in", t.path() + "/old");
  edit(t, "new",
       [&](EditExpertsOptions& o) { o.edit = ExpertEdit::merge, o.experts = experts - 1, o.use = use; });
  const WholeCheckpoint old = read_whole_checkpoint(t.path() + "/old"),
                        made = read_whole_checkpoint(t.path() + "/new");
  int64_t compared = 0;
  for (const auto& [name, values] : old.tensors) {
    if (!of_experts(name)) continue;
    ++compared;
    CHECK(rows(values, experts, experts - 1) != rows(values, experts, experts - 2));
    CHECK(rows(made.tensors.at(name), experts - 1, experts - 2) == rows(values, experts, experts - 2));
  }
  CHECK(compared == 2 * layers);
}

TEST_CASE("experts whose weights are not finite are not merged, and are named with their layer",
          "[weights]") {
  const TemporaryFolder t;
  const json& model = (--golden().end()).value()["mixtral"];
  Tensors tensors = random_tensors(model);
  const int64_t layers = model["config"]["num_hidden_layers"], experts = model["config"]["num_local_experts"];
  for (auto& [name, made] : tensors)
    if (name.find(".experts.0.w1") != std::string::npos)
      std::fill(made.bytes.begin(), made.bytes.end(), static_cast<char>(0xff));  // NaN in every type
  write_folder(t.path() + "/in", model["config"], tensors);
  import_folder(t.path() + "/in", t.path() + "/old");
  ExpertUse use;
  for (int64_t layer = 0; layer < layers; ++layer) {
    use[layer] = std::vector<double>(static_cast<size_t>(experts), 3);
    use[layer].front() = 1;
  }
  CHECK_THROWS_WITH(
      edit(t, "new",
           [&](EditExpertsOptions& o) { o.edit = ExpertEdit::merge, o.experts = experts - 1, o.use = use; }),
      Contains("layer 0") && Contains("not finite"));
}

TEST_CASE("a share of the neurons of copies is drawn anew, with the mean and deviation of what they were",
          "[weights]") {
  for (const char* name : {"mixtral", "gpt_oss"}) {
    INFO(name);
    const TemporaryFolder t;
    import_model(t, (--golden().end()).value()[name]);
    const WholeCheckpoint old = read_whole_checkpoint(t.path() + "/old");
    const ModelConfig& m = old.recipe.model;
    const auto make = [&](const std::string& to, uint64_t seed) {
      edit(t, to, [&](EditExpertsOptions& o) {
        o.edit = ExpertEdit::add, o.copies = 2, o.reinit = 0.5, o.seed = seed;
      });
      return read_whole_checkpoint(t.path() + "/" + to);
    };
    const WholeCheckpoint made = make("a", 1), again = make("b", 1), other = make("c", 2);
    const int64_t all = m.moe.num_experts, neurons = m.moe.intermediate_size;
    const std::string prefix = m.names().layer(0) + "." + m.names().moe + ".experts.";
    std::set<int64_t> of_gate, of_down;
    for (const char* part : {"gate_up_proj", "down_proj"}) {
      const Values& got = made.tensors.at(prefix + part);
      CHECK(again.tensors.at(prefix + part) == got);
      CHECK(other.tensors.at(prefix + part) != got);
      const Values was = rows(old.tensors.at(prefix + part), all, 1);
      CHECK(rows(got, 2 * all, 2) == was);  // the first copy stays
      const Values now = rows(got, 2 * all, 3);
      const bool down = part[0] == 'd';
      const auto width = static_cast<int64_t>(was.size()) / (down ? neurons : 2 * neurons);
      double before = 0, after = 0;
      for (size_t i = 0; i < was.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        if (was[i] == now[i]) continue;
        (down ? of_down : of_gate).insert(down ? at % neurons : at / width % neurons);
        before += was[i] * was[i], after += now[i] * now[i];
      }
      CHECK(after == Approx(before).epsilon(0.3));
    }
    CHECK(static_cast<int64_t>(of_gate.size()) == neurons / 2);
    CHECK(of_gate == of_down);
  }
}

TEST_CASE("numbers of experts that cannot be made are refused with what would work", "[weights]") {
  const json& models = (--golden().end()).value();
  struct Case {
    const char* model;
    ExpertEdit edit;
    int64_t keep;
    int64_t record_layers;
    const char* text;
  };
  for (const Case& c : {Case{.model = "llama",
                       .edit = ExpertEdit::add,
                       .keep = 0,
                       .record_layers = 0,
                       .text = "is a dense model, without experts"},
                        Case{.model = "mixtral",
                        .edit = ExpertEdit::prune,
                        .keep = 1,
                        .record_layers = 9,
                        .text = "and a token chooses 2; nearest valid value: 2"},
                        Case{.model = "mixtral",
                        .edit = ExpertEdit::merge,
                        .keep = 100,
                        .record_layers = 9,
                        .text = "--keep 100: the model has "},
                        Case{.model = "mixtral",
                        .edit = ExpertEdit::prune,
                        .keep = 3,
                        .record_layers = 1,
                        .text = "layer 1 has experts, and no use of them was recorded or measured"}}) {
    INFO(c.text);
    const TemporaryFolder t;
    import_model(t, models[c.model]);
    CHECK_THROWS_WITH(edit(t, "new",
                           [&](EditExpertsOptions& o) {
                             o.edit = c.edit, o.experts = c.keep;
                             for (int64_t layer = 0; layer < c.record_layers; ++layer) o.use[layer] = {1, 2};
                           }),
                      Contains(c.text));
    CHECK(!path_exists(t.path() + "/new"));
  }
}
