// Names of families' tensors, ltrain's and Hugging Face's, both ways.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "models/families/hf_tensors.h"
#include "tests/support/made_up_families.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kExperts = 3;

/// Names of all parameters of a model of that family, in whose layers 0 and 2 a feed-forward stands.
std::set<std::string> parameters(const Family& f) {
  TinyOptions o;
  o.family = &f;
  o.layers = 4;
  if (f.experts == Experts::always) {
    o.moe.num_experts = kExperts;
    o.moe.layer_step = 2;
  }
  std::set<std::string> names;
  for (const auto& [name, values] : train_tiny(o).parameters) names.insert(name);
  return names;
}

std::vector<std::string> names_of(const std::vector<TensorName>& tensors) {
  std::vector<std::string> names;
  for (const TensorName& t : tensors) names.push_back(t.name);
  return names;
}

/// Each name of ltrain goes to names of Hugging Face that come back to it, and no two to the same.
void check_both_ways(const Family& f) {
  INFO(f.name);
  std::set<std::string> seen;
  for (const std::string& name : parameters(f)) {
    INFO(name);
    const std::vector<TensorName> there = hf_tensors(f, name, kExperts);
    REQUIRE_FALSE(there.empty());
    std::set<std::pair<int64_t, int64_t>> places;
    for (const TensorName& t : there) {
      INFO(t.name);
      CHECK(seen.insert(t.name).second);
      CHECK(places.insert({t.expert, t.matrix}).second);
      const std::optional<TensorName> back = ltrain_tensor(f, t.name);
      REQUIRE(back);
      CHECK(back->name == name);
      CHECK(back->transposed == t.transposed);
      CHECK(back->stacked == t.stacked);
      CHECK(back->expert == t.expert);
      CHECK(back->matrix == t.matrix);
    }
    const bool stack = !f.hf_layout.stacked_experts && name.find(".experts.") != std::string::npos;
    CHECK(there.size() == (!stack ? 1 : name.ends_with("gate_up_proj") ? 2 * kExperts : kExperts));
  }
}

}  // namespace

TEST_CASE("every parameter of a family has a name of Hugging Face, and comes back from it") {
  for (const Family* f : families()) check_both_ways(*f);
  for (const Family& f : made_up_families()) check_both_ways(f);
}

TEST_CASE("names in Hugging Face's files") {
  const Family &gpt2 = family_of("gpt2"), &mixtral = family_of("mixtral"), &olmoe = family_of("olmoe");
  const std::string qkv = "transformer.h.1.attn.c_attn.weight";
  REQUIRE(hf_tensors(gpt2, qkv, 0).size() == 1);
  CHECK(hf_tensors(gpt2, qkv, 0)[0].transposed);
  CHECK_FALSE(hf_tensors(gpt2, "transformer.h.1.attn.c_attn.bias", 0)[0].transposed);
  CHECK_FALSE(hf_tensors(gpt2, "transformer.wte.weight", 0)[0].transposed);
  CHECK(names_of(hf_tensors(mixtral, "model.layers.3.block_sparse_moe.experts.gate_up_proj", 2)) ==
        std::vector<std::string>{"model.layers.3.block_sparse_moe.experts.0.w1.weight",
                                 "model.layers.3.block_sparse_moe.experts.1.w1.weight",
                                 "model.layers.3.block_sparse_moe.experts.0.w3.weight",
                                 "model.layers.3.block_sparse_moe.experts.1.w3.weight"});
  CHECK(names_of(hf_tensors(mixtral, "model.layers.3.block_sparse_moe.experts.down_proj", 1)) ==
        std::vector<std::string>{"model.layers.3.block_sparse_moe.experts.0.w2.weight"});
  const auto up = ltrain_tensor(olmoe, "model.layers.12.mlp.experts.63.up_proj.weight");
  REQUIRE(up);
  CHECK(up->name == "model.layers.12.mlp.experts.gate_up_proj");
  CHECK(up->expert == 63);
  CHECK(up->matrix == 1);
  CHECK(ltrain_tensor(olmoe, "model.layers.12.self_attn.q_norm.weight")->name ==
        "model.layers.12.self_attn.q_norm.weight");
}

TEST_CASE("modules that predict more tokens have the names of DeepSeek-V3's files") {
  const Family &v3 = family_of("deepseek_v3"), &v2 = family_of("deepseek_v2");
  for (const char* name : {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"}) {
    const std::string of = std::string("model.layers.61.") + name;
    CHECK(names_of(hf_tensors(v3, of, 256)) == std::vector<std::string>{of});
    CHECK(ltrain_tensor(v3, of)->name == of);
    CHECK(hf_tensors(v2, of, 64).empty());
  }
  for (const char* copy : {"model.layers.61.embed_tokens.weight", "model.layers.61.shared_head.head.weight"})
    CHECK_FALSE(ltrain_tensor(v3, copy));
}

TEST_CASE("what a family does not have has no name") {
  const Family &llama = family_of("llama"), &olmoe = family_of("olmoe"), &mistral = family_of("mistral");
  for (const char* bias : {"model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.o_proj.bias"}) {
    CHECK(hf_tensors(mistral, bias, kExperts).empty());
    CHECK_FALSE(ltrain_tensor(mistral, bias));
    CHECK(names_of(hf_tensors(llama, bias, kExperts)) == std::vector<std::string>{bias});  // it may have them
  }
  for (const char* name :
       {"model.layers.0.self_attn.q_norm.weight", "model.norm.bias", "model.layers.x.mlp.up_proj.weight",
        "model.layers.00.mlp.up_proj.weight", "model.layers.-1.mlp.up_proj.weight",
        "model.layers.0mlp.up_proj.weight", "model.layers.0.", "transformer.wte.weight",
        "model.layers.0.mlp.experts.0.up_proj.weight", "mlp.up_proj.weight", ""}) {
    INFO(name);
    CHECK(hf_tensors(llama, name, kExperts).empty());
    CHECK_FALSE(ltrain_tensor(llama, name));
  }
  CHECK(hf_tensors(llama, "model.layers.0.mlp.experts.down_proj", kExperts).empty());
  CHECK_FALSE(ltrain_tensor(olmoe, "model.layers.0.mlp.experts.01.up_proj.weight"));
  CHECK_FALSE(ltrain_tensor(olmoe, "model.layers.0.mlp.experts..up_proj.weight"));
  CHECK_FALSE(ltrain_tensor(olmoe, "model.layers.0.mlp.experts.1.w1.weight"));
}

TEST_CASE("every family names the class of transformers that its folders are of") {
  std::set<std::string> classes;
  for (const Family* f : families()) {
    INFO(f->name);
    CHECK((f->hf_class.ends_with("ForCausalLM") || f->hf_class == "GPT2LMHeadModel"));
    CHECK(classes.insert(f->hf_class).second);
  }
}
