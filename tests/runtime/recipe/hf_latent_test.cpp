// Reading a config.json of DeepSeek-V2 and V3: latents, dense first layers, groups of experts.
#include <catch2/catch.hpp>

#include "tests/runtime/recipe/hf_config_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

TEST_CASE("a config.json of DeepSeek-V3 sets latents, dense layers, groups and the bias of scores",
          "[recipe]") {
  json config = small("deepseek_v3");
  config.update({{"topk_method", "noaux_tc"},
                 {"scoring_func", "sigmoid"},
                 {"num_hidden_layers", 4},
                 {"first_k_dense_replace", 3},
                 {"num_nextn_predict_layers", 1},
                 {"ep_size", 1},
                 {"moe_layer_freq", 1},
                 {"head_dim", 64},
                 {"qk_head_dim", 999},
                 {"rope_scaling",
                  {{"type", "yarn"},
                   {"factor", 40},
                   {"beta_fast", 32},
                   {"beta_slow", 1},
                   {"mscale", 1.0},
                   {"mscale_all_dim", 0.5},
                   {"original_max_position_embeddings", 128}}}});
  const Loaded loaded = load(config);
  INFO(loaded.refusal);
  REQUIRE(loaded.recipe);
  const ModelConfig& m = loaded.recipe->model;
  CHECK(m.latent.q_lora_rank == 24);
  CHECK(m.latent.kv_lora_rank == 16);
  CHECK(m.head_dim == 24);
  CHECK(m.value_dim() == 12);
  CHECK(m.rotary_dim() == 8);
  CHECK(m.moe.dense_layers == std::vector<int64_t>{0, 1, 2});
  CHECK(m.moe.n_group == 2);
  CHECK(m.moe.topk_group == 1);
  CHECK(m.moe.score == RouterScore::sigmoid);
  CHECK(m.moe.routed_scaling_factor == 2.5);
  CHECK(m.moe.bias_update_rate == 0.001);
  CHECK(m.moe.shared_experts == 1);
  const double scale = 0.1 * 0.5 * std::log(40.0) + 1;  // width of queries and of keys
  CHECK(m.attention_scale() == Approx(scale * scale / std::sqrt(24.0)));
}

TEST_CASE("DeepSeek-V2 chooses experts from groups by one topk_method alone", "[recipe]") {
  json config = small("deepseek_v2");
  config["num_experts_per_tok"] = 3;
  const Loaded greedy = load(config);
  INFO(greedy.refusal);
  REQUIRE(greedy.recipe);
  CHECK(greedy.recipe->model.moe.n_group == 1);  // transformers does not read the two then
  CHECK(greedy.recipe->model.moe.score == RouterScore::softmax);
  CHECK_FALSE(greedy.recipe->model.moe.norm_topk_prob);
  config["topk_method"] = "group_limited_greedy";
  const Loaded groups = load(config);
  REQUIRE(groups.recipe);
  CHECK(groups.recipe->model.moe.n_group == 2);
  CHECK(groups.recipe->model.moe.topk_group == 1);
  config["n_group"] = nullptr;
  CHECK_THAT(load(config).refusal,
             Contains("F: n_group = null: topk_method group_limited_greedy needs a number"));
  config["topk_method"] = "noaux_tc";
  CHECK_THAT(load(config).refusal,
             Contains("F: topk_method = \"noaux_tc\": transformers' deepseek_v2 has \"greedy\""));
}

TEST_CASE("what latent attention cannot be is refused with a value that works", "[recipe]") {
  const auto refused = [](const json& more) {
    json config = small("deepseek_v3");
    config.update(more);
    return load(config).refusal;
  };
  CHECK(refused(json::object()) == "");
  CHECK_THAT(
      refused({{"first_k_dense_replace", 2}}),
      Contains("F: first_k_dense_replace = 2: needs a number of layers below model.num_hidden_layers (2)"));
  CHECK_THAT(refused({{"v_head_dim", 25}}), Contains("nearest valid value: 24"));
  CHECK_THAT(refused({{"qk_rope_head_dim", 7}}), Contains("must be even"));
  CHECK_THAT(refused({{"num_key_value_heads", 2}}), Contains("deepseek_v3 has one for each query head: 4"));
  CHECK_THAT(refused({{"rope_interleave", false}}), Contains("F: rope_interleave = false"));
  CHECK_THAT(refused({{"attention_bias", true}}), Contains("F: attention_bias = true"));
  CHECK_THAT(refused({{"q_lora_rank", 0}}), Contains("q_lora_rank"));
  CHECK(refused({{"q_lora_rank", nullptr}}) == "");
}
