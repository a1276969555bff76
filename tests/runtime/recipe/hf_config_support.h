// Config.json texts of Hugging Face, through files, as recipes.
#pragma once
#include <catch2/catch.hpp>

#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/json/json.h"
#include "runtime/recipe/recipe.h"
#include "tests/runtime/recipe/parse_text.h"
#include "tests/support/temporary_file.h"

namespace ltrain::test {

using nlohmann::json;

/// A recipe of a config.json, or why it is refused, with F for the file's name.
struct Loaded {
  std::optional<Recipe> recipe;
  std::string refusal;
};
inline Loaded load(const json& config, const std::string& more = "") {
  const TemporaryFile file(config.dump());
  Loaded out;
  try {
    out.recipe = parse("model: {from: " + file.path + "\n" + more + "}\n");  // columns without the path
    for (std::string& note : out.recipe->notes)
      for (size_t at; (at = note.find(file.path)) != std::string::npos;)
        note.replace(at, file.path.size(), "F");
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    out.refusal = e.what();
    for (size_t at; (at = out.refusal.find(file.path)) != std::string::npos;)
      out.refusal.replace(at, file.path.size(), "F");
  }
  return out;
}

inline bool same(const json& a, const json& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  return a == b;
}

inline json oracle() {
  std::ifstream in(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/hf_configs.json");
  return json::parse(in);
}

/// A small model of each architecture, with every size given.
inline json small(const std::string& type) {
  json c = {{"model_type", type}, {"vocab_size", 512}, {"initializer_range", 0.02}};
  if (type == "gpt2") {
    c.update({{"n_embd", 64}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", 512}});
    return c;
  }
  c.update({{"hidden_size", 64},
            {"intermediate_size", 128},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"max_position_embeddings", 512}});
  if (type.starts_with("deepseek")) {
    c.update({{"num_key_value_heads", 4},
              {"n_routed_experts", 8},
              {"num_experts_per_tok", 2},
              {"moe_intermediate_size", 32},
              {"n_shared_experts", 1},
              {"first_k_dense_replace", 1},
              {"q_lora_rank", 24},
              {"kv_lora_rank", 16},
              {"qk_nope_head_dim", 16},
              {"qk_rope_head_dim", 8},
              {"v_head_dim", 12},
              {"n_group", 2},
              {"topk_group", 1}});
    return c;
  }
  if (family_of(type).experts == Experts::always) {
    c.update({{type == "mixtral" || type == "gpt_oss" ? "num_local_experts" : "num_experts", 8},
              {"num_experts_per_tok", 2}});
    if (type == "qwen3_moe") c["moe_intermediate_size"] = 32;
  }
  return c;
}

inline std::vector<std::string> all_families() {
  return family_names([](const Family&) { return true; });
}

}  // namespace ltrain::test
