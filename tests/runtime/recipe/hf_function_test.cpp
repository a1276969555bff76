// Activation functions that a config.json names.
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
  // Of gemma's two keys transformers' class reads the other one.
  CHECK(of("gemma2", "hidden_act", "gelu") == FeedForward::geglu);
}
