// Files that transformers' own code made in fp64: scripts/golden/make-family-golden.py and
// scripts/golden/make-moe-golden.py.
#pragma once
#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "parallel/optim/parameter_spec.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/recipe/recipe.h"
#include "tests/support/temporary_folder.h"

namespace ltrain::test {

/// Steps, sequences a step and their tokens, in the files of families and of LoRA.
inline constexpr int64_t kHfSteps = 20, kHfBatch = 2, kHfSeq = 12;

struct HfGolden {
  SafetensorsFile file;
  ModelConfig model;  ///< read from the config.json that transformers made its own from

  /// tests/golden/NAME.safetensors
  explicit HfGolden(const std::string& name)
      : file(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/" + name + ".safetensors") {
    const TemporaryFolder folder;
    const std::string config = folder.path() + "/config.json";
    std::ofstream(config) << file.metadata().at("config");
    // A recipe's vocabulary holds its tokenizer's bytes, which these tokens are not.
    const std::string seq = std::to_string(file.find("tokens")->shape.back());
    model = parse_recipe("model: {from: " + config + ", vocab_size: 257}\ndata: {seq_length: " + seq + "}\n",
                         "golden")
                .model;
    if (const auto at = file.metadata().find("modules");
        at != file.metadata().end()) {  // a recipe asks for them
      model.num_nextn_predict_layers = std::stol(at->second);
      model.mtp_loss_scaling_factor = number("modules_scale");
    }
    model.vocab_size = nlohmann::json::parse(file.metadata().at("config")).at("vocab_size").get<int64_t>();
  }
  template <class T>
  std::vector<T> read(const std::string& name) const {
    const SafetensorsEntry* e = file.find(name);
    INFO(name);
    REQUIRE(e);
    REQUIRE(e->dtype == safetensors_dtype(dtype_of<T>::value));
    std::vector<T> out((e->end - e->begin) / sizeof(T));
    file.read(*e, 0, e->end - e->begin, out.data());
    return out;
  }
  double number(const char* key) const { return std::stod(file.metadata().at(key)); }
};

/// Elements of a file's tensor that a parameter holds: all, or rows of a fused tensor.
template <class T>
std::vector<T> part_of(const ParameterSpec& spec, std::vector<T> tensor) {
  if (spec.slice.global.elements() <= spec.shape.elements()) return tensor;
  const int64_t first = spec.slice.offset[0] * (spec.shape.elements() / spec.shape[0]);
  return {tensor.begin() + first, tensor.begin() + first + spec.shape.elements()};
}

}  // namespace ltrain::test
