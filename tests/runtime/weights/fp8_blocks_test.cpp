// Weights in FP8 with factors of blocks, as DeepSeek-V3 is published (tests/golden/fp8_blocks.safetensors,
// made by scripts/golden/make-fp8-golden.py, has PyTorch's values of them).
#include <catch2/catch.hpp>

#include <random>

#include "base/json/json.h"
#include "runtime/checkpoint/files.h"
#include "runtime/files/write_file.h"
#include "runtime/weights/hf_folder.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;
using nlohmann::json;

namespace {

constexpr int64_t kRows = 300, kColumns = 200;
constexpr const char* kName = "model.layers.0.mlp.up_proj.weight";

struct Stored {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
};
using Tensors = std::map<std::string, Stored>;

std::vector<char> golden(const std::string& name) {
  const SafetensorsFile file(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/fp8_blocks.safetensors");
  const SafetensorsEntry* e = file.find(name);
  REQUIRE(e);
  std::vector<char> bytes(static_cast<size_t>(e->end - e->begin));
  file.read(*e, 0, e->end - e->begin, bytes.data());
  return bytes;
}

/// A llama of one layer, all zeros in bf16 but for the golden's matrix.
Tensors tensors() {
  Tensors all;
  const auto zeros = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t n = 2;
    for (const int64_t d : shape) n *= d;
    all[name] = {DType::bf16, shape, std::vector<char>(static_cast<size_t>(n))};
  };
  const std::string layer = "model.layers.0.";
  zeros("model.embed_tokens.weight", {272, kColumns});
  zeros("lm_head.weight", {272, kColumns});
  zeros("model.norm.weight", {kColumns});
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
    zeros(layer + norm + ".weight", {kColumns});
  for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"})
    zeros(layer + "self_attn." + part + ".weight", {kColumns, kColumns});
  zeros(layer + "mlp.gate_proj.weight", {kRows, kColumns});
  zeros(layer + "mlp.down_proj.weight", {kColumns, kRows});
  all[kName] = {DType::f8e4m3, {kRows, kColumns}, golden("codes")};
  all[std::string(kName) + "_scale_inv"] = {DType::f32, {3, 2}, golden("scales")};
  return all;
}

std::string write_folder(const std::string& folder, const Tensors& tensors, const json& block = {128, 128}) {
  make_folders(folder);
  const json config = {{"model_type", "llama"},
                       {"vocab_size", 272},
                       {"hidden_size", kColumns},
                       {"intermediate_size", kRows},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 4},
                       {"max_position_embeddings", 64},
                       {"quantization_config",
                        {{"quant_method", "fp8"},
                         {"fmt", "e4m3"},
                         {"activation_scheme", "dynamic"},
                         {"weight_block_size", block}}}};
  write_file(folder + "/config.json", config.dump());
  std::vector<SafetensorsItem> items;
  for (const auto& [name, t] : tensors) items.push_back({name, t.dtype, t.shape, t.bytes.data()});
  NewFile file(folder + "/model.safetensors");
  write_safetensors(file, items);
  return folder;
}

std::unique_ptr<PieceReader> open(const std::string& folder, std::vector<std::string>& notes) {
  const Recipe recipe = parse_recipe("{}", "test", {"model.from=" + folder, "data.seq_length=16"});
  auto reader = hf_weights(open_hf_folder(folder, "test"), recipe.model, notes);
  reader->take_any_float();
  return reader;
}

}  // namespace

TEST_CASE("weights in FP8 are read as PyTorch's values, whole and in slices", "[weights]") {
  const TemporaryFolder t;
  std::vector<std::string> notes;
  const auto reader = open(write_folder(t.path() + "/fp8", tensors()), notes);
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Contains("weights in FP8 with factors of blocks (1 of the tensors) are read as bf16"));
  const std::vector<char> bytes = golden("values");
  const auto* want = reinterpret_cast<const bf16*>(bytes.data());
  const Shape shape{kRows, kColumns};
  std::mt19937 random(6);
  for (int i = 0; i < 40; ++i) {
    const int64_t rows = i ? 1 + static_cast<int64_t>(random() % kRows) : kRows,
                  columns = i ? 1 + static_cast<int64_t>(random() % kColumns) : kColumns,
                  row = static_cast<int64_t>(random() % static_cast<uint64_t>(kRows - rows + 1)),
                  column = static_cast<int64_t>(random() % static_cast<uint64_t>(kColumns - columns + 1));
    std::vector<float> wide(static_cast<size_t>(rows * columns), -1.0F);
    std::vector<bf16> narrow(wide.size());
    const Slice slice = Slice::box(shape, {row, column}, {rows, columns});
    reader->read(kName, DType::f32, slice, wide.data());
    reader->read(kName, DType::bf16, slice, narrow.data());
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const float value = static_cast<float>(want[(row + r) * kColumns + column + c]);
        const size_t at = static_cast<size_t>(r * columns + c);
        wrong += wide[at] != value || static_cast<float>(narrow[at]) != value;
      }
    INFO(to_string(slice));
    CHECK(wrong == 0);
  }
}

TEST_CASE("FP8 weights without their factors, or of other blocks, are refused by name", "[weights]") {
  const TemporaryFolder t;
  std::vector<std::string> notes;
  Tensors some = tensors();
  const std::string scales = std::string(kName) + "_scale_inv";
  SECTION("no factors") {
    some.erase(scales);
    CHECK_THROWS_WITH(open(write_folder(t.path() + "/a", some), notes),
                      Contains("1 tensor of the model is not there: " + scales));
  }
  SECTION("factors of other blocks") {
    some.at(scales).shape = {2, 3};
    CHECK_THROWS_WITH(open(write_folder(t.path() + "/b", some), notes),
                      Contains("is F8_E4M3 [300, 200] with F32 [2, 3] of factors"));
  }
  SECTION("a config.json of other blocks") {
    CHECK_THROWS_WITH(open(write_folder(t.path() + "/c", some, {64, 64}), notes),
                      Contains("quant_method \"fp8\" with weight_block_size [128, 128] alone"));
  }
}
