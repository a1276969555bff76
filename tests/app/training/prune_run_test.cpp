// ltrain checkpoint prune: what it preserves, and a student that begins with its result.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/app/run_program.h"
#include "tests/app/training/losses.h"
#include "tests/runtime/weights/support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kThreeLayers = "run tiny.yaml model.num_hidden_layers=3 ";

/// Zeros one row of an fp32 matrix, or one column.
void zero(Made& m, int64_t index, bool column) {
  const int64_t rows = m.shape[0], columns = m.shape[1];
  auto* x = reinterpret_cast<float*>(m.bytes.data());
  for (int64_t i = 0; i < (column ? rows : columns); ++i)
    x[column ? i * columns + index : index * columns + i] = 0;
}

}  // namespace

TEST_CASE("pruning a layer that adds zero and neurons whose output is zero changes no loss, to the bit") {
  TempRun t;
  REQUIRE(t.sh(kThreeLayers).code == 0);
  REQUIRE(t.sh("export run hf --dtype fp32 -q").code == 0);
  Tensors tensors = read_tensors(t.folder() + "/hf");
  for (const char* name : {"self_attn.o_proj", "mlp.down_proj"}) {
    auto& bytes = tensors.at(std::string("model.layers.1.") + name + ".weight").bytes;
    std::memset(bytes.data(), 0, bytes.size());
  }
  // 12 dead neurons of 64, others in each layer, by one of their three matrices.
  for (const int layer : {0, 2})
    for (int i = 0; i < 12; ++i) {
      const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
      zero(tensors.at(mlp +
                      (i % 3 == 0   ? "gate_proj"
                       : i % 3 == 1 ? "up_proj"
                                    : "down_proj") +
                      ".weight"),
           5 * i + layer, i % 3 == 2);
    }
  std::filesystem::remove(t.folder() + "/hf/model.safetensors");
  write_tensors(t.folder() + "/hf/model.safetensors", tensors);
  REQUIRE(t.sh("import hf dead -q").code == 0);
  const Outcome pruned = t.sh("checkpoint prune dead small --layers 0,2 --intermediate-size 52 -q");
  INFO(pruned.text);
  REQUIRE(pruned.code == 0);
  CHECK_THAT(pruned.text, Contains("a run begins with it by: checkpoint.load.path=small "
                                   "model.num_hidden_layers=2 model.intermediate_size=52"));
  CHECK(t.sh("checkpoint verify small").code == 0);
  REQUIRE(t.sh("checkpoint prune dead less --layers 0,2 --intermediate-size 51 -q").code == 0);
  REQUIRE(t.sh("checkpoint prune dead other --layers 0,1 -q").code == 0);
  const std::string data = " --seq-length 32 --data text-val";
  const double whole = eval_loss(t, "dead" + data);
  CHECK(eval_loss(t, "small" + data) == whole);
  CHECK(eval_loss(t, "less" + data) != whole);
  CHECK(eval_loss(t, "other" + data) != whole);
}

TEST_CASE(
    "prune and distil are two commands: the student begins with the pruned weights and nears its teacher") {
  TempRun t;
  REQUIRE(t.sh(kThreeLayers +
               "train.train_steps=60 train.eval_interval=0 checkpoint.save_interval=0 optimizer.lr=1e-2")
              .code == 0);
  const Outcome pruned = t.sh("checkpoint prune run small --layers 0,2 --intermediate-size 48 --json");
  INFO(pruned.text);
  REQUIRE(pruned.code == 0);
  const auto report = nlohmann::json::parse(pruned.text);
  CHECK(report["dropped_layers"] == nlohmann::json({1}));
  std::string settings;
  for (const auto& s : report["settings"]) settings += " " + s.get<std::string>();
  const std::string distil =
      "run tiny.yaml distillation.teacher=run distillation.kd_ratio=1 train.train_steps=20 "
      "train.eval_interval=0" +
      settings;
  for (const char* how : {" output_dir=pruned checkpoint.load.path=small", " output_dir=fresh"}) {
    const Outcome o = t.sh(distil + how);
    INFO(o.text);
    REQUIRE(o.code == 0);
  }
  const std::vector<double> pruned_kl = t.values("kl", "pruned"), fresh_kl = t.values("kl", "fresh");
  REQUIRE(pruned_kl.size() == 20);
  CHECK(pruned_kl.front() < 0.5 * fresh_kl.front());
  CHECK(pruned_kl.back() < pruned_kl.front());
}

TEST_CASE("pruning by activations keeps the neurons and layers of largest importance in its report") {
  TempRun t;
  REQUIRE(t.sh(kThreeLayers).code == 0);
  const Outcome o = t.sh(
      "checkpoint prune run small --layers-keep 2 --intermediate-size 24 --samples 6 --precision fp64 --json "
      "2>/dev/null");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const auto report = nlohmann::json::parse(o.text);
  const auto layers = report["importance"]["layers"].get<std::vector<double>>();
  REQUIRE(layers.size() == 3);
  const auto least = std::min_element(layers.begin(), layers.end()) - layers.begin();
  CHECK(report["dropped_layers"] == nlohmann::json({least}));
  REQUIRE(report["kept_neurons"].size() == 2);
  for (size_t i = 0, layer = 0; i < 2; ++i, ++layer) {
    if (static_cast<ptrdiff_t>(layer) == least) ++layer;
    const auto neurons = report["importance"]["neurons"][layer].get<std::vector<double>>();
    const auto kept = report["kept_neurons"][i].get<std::vector<size_t>>();
    REQUIRE(kept.size() == 24);
    double smallest = neurons[kept[0]], largest = 0;
    for (const size_t n : kept) smallest = std::min(smallest, neurons[n]);
    for (size_t n = 0; n < neurons.size(); ++n)
      if (std::find(kept.begin(), kept.end(), n) == kept.end()) largest = std::max(largest, neurons[n]);
    CHECK(smallest >= largest);
    CHECK(largest > 0);
  }
  CHECK(t.sh("eval small --threads 1").code == 0);
  // The same samples choose the same weights.
  CHECK(t.sh("checkpoint prune run small2 --layers-keep 2 --intermediate-size 24 --samples 6 --precision "
             "fp64 -q")
            .code == 0);
  CHECK(read_file(t.folder() + "/small2/shard-00000-of-00001.safetensors") ==
        read_file(t.folder() + "/small/shard-00000-of-00001.safetensors"));
  for (const auto& [arguments, text] :
       {std::pair("--layers-keep 2", "--layers-keep: chooses by activations; add --samples 128"),
        std::pair("--layers-keep 9 --samples 2",
                  "--layers-keep 9: the model has 3 layers; nearest valid value: 3"),
        std::pair("--intermediate-size 8 --data text-val", "--data: is for measurements by --samples"),
        std::pair("--intermediate-size 8 --device cpu", "--device: is for measurements by --samples"),
        std::pair("--intermediate-size 8 --precision fp64", "--precision: is for measurements by --samples"),
        std::pair("--layers 0 --layers-keep 2 --samples 2", "set only one of --layers and --layers-keep")}) {
    const Outcome bad = t.sh(std::string("checkpoint prune run bad ") + arguments);
    INFO(bad.text);
    CHECK(bad.code == 64);
    CHECK_THAT(bad.text, Contains(text));
  }
}
