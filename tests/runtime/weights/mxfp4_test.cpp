// gpt_oss as its authors publish it: experts in MXFP4 (tests/golden/mxfp4.safetensors, made by
// scripts/golden/make-mxfp4-golden.py, has transformers' own values of them).
#include <catch2/catch.hpp>

#include <cstring>
#include <fstream>
#include <random>

#include "base/json/json.h"
#include "runtime/files/write_file.h"
#include "tests/runtime/weights/support.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;
using nlohmann::json;

namespace {

const std::string kGolden = std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/";
constexpr const char* kExperts = "model.layers.0.mlp.experts.";

/// One layer with the golden's experts: in MXFP4, or as transformers has them in bf16.
Tensors mxfp4_tensors(bool blocks) {
  std::ifstream in(kGolden + "hf_folders.json");
  const json model = json::parse(in).begin().value()["gpt_oss"];
  Tensors all;
  for (const auto& [name, t] : model["tensors"].items()) {
    if (name.starts_with("model.layers.") && !name.starts_with("model.layers.0.")) continue;
    if (name.find(".experts.") != std::string::npos || name.find("router") != std::string::npos) continue;
    auto shape = t[1].get<std::vector<int64_t>>();
    for (int64_t& d : shape)
      if (d == 32) d = 64;  // the golden's hidden size
    all[name] = zeros(shape);
  }
  const std::string mlp = "model.layers.0.mlp.";
  all[mlp + "router.weight"] = zeros({3, 64});
  all[mlp + "router.bias"] = zeros({3});
  all[mlp + "experts.gate_up_proj_bias"] = zeros({3, 64});
  all[mlp + "experts.down_proj_bias"] = zeros({3, 64});
  const SafetensorsFile file(kGolden + "mxfp4.safetensors");
  for (const SafetensorsEntry& e : file.entries()) {
    if ((e.dtype == "U8") != blocks) continue;
    Made s{*dtype_from_safetensors(e.dtype), e.shape,
           std::vector<char>(static_cast<size_t>(e.end - e.begin))};
    file.read(e, 0, e.end - e.begin, s.bytes.data());
    all[kExperts + e.name] = std::move(s);
  }
  return all;
}

std::string write_mxfp4_folder(const std::string& folder, const Tensors& tensors) {
  json config = {{"model_type", "gpt_oss"},
                 {"vocab_size", 272},
                 {"hidden_size", 64},
                 {"intermediate_size", 32},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 4},
                 {"head_dim", 16},
                 {"max_position_embeddings", 64},
                 {"num_local_experts", 3},
                 {"num_experts_per_tok", 2},
                 {"sliding_window", 20},
                 {"rope_scaling", {{"rope_type", "default"}}}};
  config["quantization_config"] = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}};
  write_folder(folder, config, tensors);
  return folder;
}

}  // namespace

TEST_CASE("experts in MXFP4 are read as the values that transformers has, whole and in slices", "[weights]") {
  const TemporaryFolder t;
  std::vector<std::string> notes, none;
  const auto packed = open_weights(write_mxfp4_folder(t.path() + "/packed", mxfp4_tensors(true)), notes);
  const auto plain = open_weights(write_mxfp4_folder(t.path() + "/plain", mxfp4_tensors(false)), none);
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Contains("2 tensors are MXFP4, and are read as the bf16 values that they stand for"));
  CHECK(none.empty());
  std::mt19937 random(5);
  for (const char* name : {"gate_up_proj", "down_proj"})
    for (int i = 0; i < 40; ++i) {
      const Shape shape = packed->tensors().at(std::string(kExperts) + name).shape;
      Shape offset = shape, extent = shape;
      for (int d = 0; d < shape.rank; ++d) {
        extent.dims[d] = i ? 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(shape[d])) : shape[d];
        offset.dims[d] = static_cast<int64_t>(random() % static_cast<uint64_t>(shape[d] - extent[d] + 1));
      }
      Slice slice = Slice::box(shape, offset, extent);
      if (i > 20) slice = slice.range(slice.elements() / 3, slice.elements());
      std::vector<float> a(static_cast<size_t>(slice.elements()), -1.0F), b(a);
      for (const auto& [reader, to] : {std::pair{packed.get(), &a}, {plain.get(), &b}})
        reader->read(std::string(kExperts) + name, DType::f32, slice, to->data());
      INFO(name << " " << to_string(slice));
      CHECK(a == b);
      CHECK((i || std::any_of(a.begin(), a.end(), [](float v) { return v != 0; })));
    }
}

TEST_CASE("blocks and scales may lie in different files of a folder", "[weights]") {
  const TemporaryFolder t;
  std::vector<std::string> notes, none;
  const Tensors all = mxfp4_tensors(true);
  const std::string folder = write_mxfp4_folder(t.path() + "/split", all);
  json map = json::object();
  for (const bool scales : {false, true}) {
    const std::string name = scales ? "b.safetensors" : "a.safetensors";
    std::vector<SafetensorsItem> items;
    for (const auto& [tensor, s] : all) {
      if (tensor.ends_with("_scales") != scales) continue;
      items.push_back({tensor, s.dtype, s.shape, s.bytes.data()});
      map[tensor] = name;
    }
    NewFile file(folder + "/" + name);
    write_safetensors(file, items);
  }
  write_file(folder + "/model.safetensors.index.json", json{{"weight_map", map}}.dump());
  const auto split = open_weights(folder, notes),
             plain = open_weights(write_mxfp4_folder(t.path() + "/plain", mxfp4_tensors(false)), none);
  const std::string name = std::string(kExperts) + "down_proj";
  const Slice whole = Slice::whole(split->tensors().at(name).shape);
  std::vector<float> a(static_cast<size_t>(whole.elements())), b(a);
  split->read(name, DType::f32, whole, a.data());
  plain->read(name, DType::f32, whole, b.data());
  CHECK(a == b);
}

TEST_CASE("gate and up of an expert lie beside each other in its file", "[weights]") {
  const TemporaryFolder t;
  std::vector<std::string> notes;
  const Tensors all = mxfp4_tensors(false);
  const auto reader = open_weights(write_mxfp4_folder(t.path() + "/plain", all), notes);
  const std::string name = std::string(kExperts) + "gate_up_proj";
  const auto* file = reinterpret_cast<const uint16_t*>(all.at(name).bytes.data());  // (3, 64, 2 * 32)
  const Shape shape = reader->tensors().at(name).shape;                             // (3, 2, 32, 64)
  std::vector<uint16_t> ours(static_cast<size_t>(shape.elements()));
  reader->read(name, DType::bf16, Slice::whole(shape), ours.data());
  int64_t wrong = 0;
  for (int64_t e = 0; e < 3; ++e)
    for (int64_t m = 0; m < 2; ++m)
      for (int64_t f = 0; f < 32; ++f)
        for (int64_t h = 0; h < 64; ++h)
          wrong += ours[static_cast<size_t>(((e * 2 + m) * 32 + f) * 64 + h)] !=
                   file[(e * 64 + h) * 64 + 2 * f + m];
  CHECK(wrong == 0);
}

TEST_CASE("MXFP4 tensors that are no blocks of the model's weights are refused by name", "[weights]") {
  const TemporaryFolder t;
  std::vector<std::string> notes;
  Tensors some = mxfp4_tensors(true);
  SECTION("no scales") {
    some.erase(std::string(kExperts) + "down_proj_scales");
    CHECK_THROWS_WITH(
        open_weights(write_mxfp4_folder(t.path() + "/a", some), notes),
        Contains("1 tensor of the model is not there: model.layers.0.mlp.experts.down_proj_scales"));
  }
  SECTION("blocks of another shape") {
    Made& blocks = some.at(std::string(kExperts) + "down_proj_blocks");
    blocks.shape = {3, 32, 2, 16};
    CHECK_THROWS_WITH(
        open_weights(write_mxfp4_folder(t.path() + "/b", some), notes),
        Contains("down_proj_blocks is U8 [3, 32, 2, 16], and MXFP4 weights of the recipe's model are "
                 "U8 [3, 64, 1, 16]"));
  }
  SECTION("another way of fewer bits") {
    const std::string folder = write_mxfp4_folder(t.path() + "/c", some);
    std::ifstream in(folder + "/config.json");
    json config = json::parse(in);
    config["quantization_config"]["quant_method"] = "awq";
    write_file(folder + "/config.json", config.dump());
    CHECK_THROWS_WITH(open_weights(folder, notes), Contains("quant_method \"mxfp4\" alone"));
  }
}
