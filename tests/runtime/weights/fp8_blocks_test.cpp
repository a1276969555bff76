// Weights in FP8 with factors of blocks, as DeepSeek-V3 is published (tests/golden/fp8_blocks.safetensors,
// made by scripts/golden/make-fp8-golden.py, has PyTorch's values of them).
#include <catch2/catch.hpp>

#include <random>

#include "base/json/json.h"
#include "tests/runtime/weights/support.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;
using nlohmann::json;

namespace {

constexpr int64_t kRows = 300, kColumns = 200;
constexpr const char* kName = "model.layers.0.mlp.up_proj.weight";

std::vector<char> golden_bytes(const std::string& name) {
  const SafetensorsFile file(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/fp8_blocks.safetensors");
  const SafetensorsEntry* e = file.find(name);
  REQUIRE(e);
  std::vector<char> bytes(static_cast<size_t>(e->end - e->begin));
  file.read(*e, 0, e->end - e->begin, bytes.data());
  return bytes;
}

/// A llama of one layer, all zeros in bf16 but for the golden's matrix.
Tensors fp8_tensors() {
  Tensors all;
  const std::string layer = "model.layers.0.";
  all["model.embed_tokens.weight"] = zeros({272, kColumns});
  all["lm_head.weight"] = zeros({272, kColumns});
  all["model.norm.weight"] = zeros({kColumns});
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
    all[layer + norm + ".weight"] = zeros({kColumns});
  for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"})
    all[layer + "self_attn." + part + ".weight"] = zeros({kColumns, kColumns});
  all[layer + "mlp.gate_proj.weight"] = zeros({kRows, kColumns});
  all[layer + "mlp.down_proj.weight"] = zeros({kColumns, kRows});
  all[kName] = {DType::f8e4m3, {kRows, kColumns}, golden_bytes("codes")};
  all[std::string(kName) + "_scale_inv"] = {DType::f32, {3, 2}, golden_bytes("scales")};
  return all;
}

std::string write_fp8_folder(const std::string& folder, const Tensors& tensors,
                             const json& block = {128, 128}) {
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
  write_folder(folder, config, tensors);
  return folder;
}

}  // namespace

TEST_CASE("weights in FP8 are read as PyTorch's values, whole and in slices", "[weights]") {
  const TemporaryFolder t;
  std::vector<std::string> notes;
  const auto reader = open_weights(write_fp8_folder(t.path() + "/fp8", fp8_tensors()), notes);
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Contains("weights in FP8 with factors of blocks (1 of the tensors) are read as bf16"));
  const std::vector<char> bytes = golden_bytes("values");
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
  Tensors some = fp8_tensors();
  const std::string scales = std::string(kName) + "_scale_inv";
  SECTION("no factors") {
    some.erase(scales);
    CHECK_THROWS_WITH(open_weights(write_fp8_folder(t.path() + "/a", some), notes),
                      Contains("1 tensor of the model is not there: " + scales));
  }
  SECTION("factors of other blocks") {
    some.at(scales).shape = {2, 3};
    CHECK_THROWS_WITH(open_weights(write_fp8_folder(t.path() + "/b", some), notes),
                      Contains("is F8_E4M3 [300, 200] with F32 [2, 3] of factors"));
  }
  SECTION("a config.json of other blocks") {
    CHECK_THROWS_WITH(open_weights(write_fp8_folder(t.path() + "/c", some, {64, 64}), notes),
                      Contains("quant_method \"fp8\" with weight_block_size [128, 128] alone"));
  }
}
