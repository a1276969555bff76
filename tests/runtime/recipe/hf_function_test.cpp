// Activation functions and biases that a config.json names.
#include <set>

#include "tests/runtime/recipe/hf_config_support.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("an activation function has transformers' names, all of those that mean one", "[recipe]") {
  const auto of = [](const char* type, const char* key, const char* word) {
    json config = small(type);
    config[key] = word;
    const Loaded l = load(config);
    INFO(type << " " << word << " " << l.refusal);
    REQUIRE(l.recipe);
    CHECK(l.recipe->notes.empty());
    return l.recipe->model.traits().feed_forward;
  };
  for (const char* word : {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh"}) {
    CHECK(of("gpt2", "activation_function", word) == FeedForward::gelu);
    CHECK(of("gemma2", "hidden_activation", word) == FeedForward::geglu);
    CHECK(of("llama", "hidden_act", word) == FeedForward::geglu);
  }
  for (const char* word : {"gelu", "gelu_python"}) {
    CHECK(of("gpt2", "activation_function", word) == FeedForward::gelu_erf);
    CHECK(of("gemma3_text", "hidden_activation", word) == FeedForward::geglu_erf);
    CHECK(of("mixtral", "hidden_act", word) == FeedForward::geglu_erf);
  }
  for (const char* word : {"silu", "swish"}) CHECK(of("llama", "hidden_act", word) == FeedForward::swiglu);
  // transformers' class of gemma reads hidden_activation, not this key.
  CHECK(of("gemma2", "hidden_act", "gelu") == FeedForward::geglu);
}

TEST_CASE("attention's biases are those that transformers' class of each family has", "[recipe]") {
  // modeling_*.py: bias=config.attention_bias of q, k, v and o_proj.
  const std::set<std::string> may{"llama", "qwen3",   "qwen3_moe", "olmo2",
                                  "olmoe", "smollm3", "gemma2",    "gemma3_text"};
  for (const std::string& type : all_families()) {
    INFO(type);
    CHECK(family_of(type).attention_biases == (may.count(type) > 0));
    json config = small(type);
    const Loaded without = load(config);
    config["attention_bias"] = true;
    const Loaded with = load(config);
    REQUIRE(without.recipe);
    if (!may.count(type)) {
      CHECK((!with.recipe || type == "gpt_oss"));  // gpt_oss always has biases
      continue;
    }
    REQUIRE(with.recipe);
    const ModelTraits before = without.recipe->model.traits(), after = with.recipe->model.traits();
    CHECK((!before.qkv_bias && !before.attention_output_bias));
    CHECK((after.qkv_bias && after.attention_output_bias));
  }
}
