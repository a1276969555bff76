// Precision in recipes: phases, eight bits, and the plan of a run that changes between them.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "runtime/plan/make_plan.h"
#include "runtime/recipe/rules/fp8_rules.h"

using namespace ltrain;
using Catch::Contains;

namespace {

const std::string kModel =
    "model: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4, "
    "vocab_size: 257, max_position_embeddings: 64}\n"
    "data: {seq_length: 64}\n"
    "train: {micro_batch_size: 2, global_batch_size: 4}\n"
    "device: cpu\n";

Recipe small_recipe(const std::string& text) { return resolve(parse_recipe(kModel + text, "r.yaml"), 1); }
int64_t arena(const std::string& text) {
  return make_plan(small_recipe(text), builtin_profile(2)).ranks.front().arena.arena_bytes;
}

}  // namespace

TEST_CASE("a list of precisions: what each step computes in, and back from its dump", "[recipe]") {
  const Recipe r = small_recipe(
      "precision: [{until_step: 10, precision: fp8}, {until_step: 12, precision: bf16}, {precision: fp8}]\n");
  CHECK(precision_at(r, 1) == Precision::fp8);
  CHECK(precision_at(r, 10) == Precision::fp8);
  CHECK(precision_at(r, 11) == Precision::bf16);
  CHECK(precision_at(r, 12) == Precision::bf16);
  CHECK(precision_at(r, 13) == Precision::fp8);
  CHECK(precision_text(r) == "fp8 until step 10, then bf16 until step 12, then fp8");
  const Recipe again = parse_recipe(dump_yaml(r), "dump");
  CHECK(again.phases == r.phases);
  CHECK(again.precision == r.precision);
  CHECK(dump_json(r).find("\"until_step\": 12") != std::string::npos);
  const Recipe one = small_recipe("precision: [{precision: tf32}]\n");
  CHECK((one.phases.empty() && one.precision == Precision::tf32));
  CHECK(precision_at(one, 5) == Precision::tf32);
}

TEST_CASE("settings of FP8 come back from their dump", "[recipe]") {
  const Recipe r = small_recipe(
      "precision: fp8\nfp8: {format: e4m3, amax_history_len: 16, amax_compute_algo: most_recent, margin: 2, "
      "keep: [\"*.mlp.*\"], first_layers_bf16: 1, output_layer: true}\n");
  CHECK((!r.fp8.hybrid && r.fp8.history == 16 && r.fp8.most_recent && r.fp8.margin == 2));
  CHECK((r.fp8.output_layer && !small_recipe("precision: fp8\n").fp8.output_layer));
  CHECK(parse_recipe(dump_yaml(r), "dump").fp8 == r.fp8);
  check_fp8(r);
}

TEST_CASE("patterns of FP8 that match nothing, half a matrix or everything are refused", "[recipe]") {
  const auto keep = [](const std::string& patterns) {
    return small_recipe("precision: fp8\nfp8:\n  keep: " + patterns + "\n");
  };
  CHECK_THROWS_WITH(check_fp8(keep("[\"*.experts.*\"]")),
                    Contains("r.yaml:7:") && Contains("*.experts.* matches no parameter"));
  CHECK_THROWS_WITH(check_fp8(keep("[\"*.k_proj.weight\"]")), Contains("match both"));
  CHECK_THROWS_WITH(check_fp8(keep("[\"*\"]")), Contains("leaves no linear layer to round"));
  check_fp8(keep("[\"*.self_attn.*\"]"));
  Recipe cuda = keep("[]");
  cuda.device = DeviceChoice::cuda;
  check_fp8(cuda);
  cuda.train.micro_batch_size = 1;
  cuda.data.seq_length = 60;
  CHECK_THROWS_WITH(check_fp8(cuda), Contains("FP8 matmuls on a GPU need multiples of 16"));
}

TEST_CASE("the output layer in FP8 is refused with a kept weight and, on a GPU, an odd vocabulary",
          "[recipe]") {
  const auto output = [](const std::string& more) {
    return small_recipe("precision: fp8\nfp8:\n  output_layer: true\n" + more);
  };
  check_fp8(output(""));
  CHECK_THROWS_WITH(
      check_fp8(output("  keep: [lm_head.weight]\n")),
      Contains("r.yaml:7:3: fp8.output_layer = true: fp8.keep leaves its weight, lm_head.weight, in "
               "bf16; nearest valid value: false"));
  Recipe cuda = output("");
  cuda.device = DeviceChoice::cuda;
  CHECK_THROWS_WITH(
      check_fp8(cuda),
      Contains("r.yaml:7:3: fp8.output_layer = true: FP8 matmuls on a GPU need multiples of 16, and "
               "model.vocab_size over parallel.tensor is 257; nearest valid value: false, or "
               "model.vocab_size: 272"));
  cuda.model.vocab_size = 272;
  check_fp8(cuda);
  cuda.model.vocab_size = 257;
  cuda.fp8.recipe = Fp8Recipe::blockwise;  // its kernels take any width
  check_fp8(cuda);
  cuda.fp8 = {};
  check_fp8(cuda);
}

TEST_CASE("the plan of a run in phases has room for all of them", "[recipe]") {
  const std::string both = "precision: [{until_step: 2, precision: bf16}, {precision: fp8}]\n";
  CHECK(arena("precision: [{until_step: 2, precision: fp8}, {precision: bf16}]\n") == arena(both));
  CHECK(arena("precision: bf16\n") < arena(both));
  // Steps of bf16 keep norms in bf16, beside the rounded weights of the others.
  CHECK(arena("precision: fp8\n") < arena(both));
  const std::string current = "fp8: {recipe: tensorwise}\n";
  CHECK(arena(both + current) == arena("precision: fp8\n" + current));
}
