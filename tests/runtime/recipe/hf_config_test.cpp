// Every key of a Hugging Face config.json is obeyed, refused, or known to be harmless. The oracle is
// transformers' own config classes: tests/golden/hf_configs.json, written by
// scripts/golden/make-hf-configs.py.
#include "models/families/hf_keys.h"
#include "runtime/recipe/schema/schema.h"
#include "tests/runtime/recipe/hf_config_support.h"

using namespace ltrain;
using namespace ltrain::recipe;
using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Value of a key of the recipe, as JSON.
json setting(const Recipe& r, const std::string& path) {
  const Key* key = find_key(path);
  REQUIRE(key);
  return json::parse(key->write(*key, r, true));
}

}  // namespace

TEST_CASE("every key of transformers' config classes is in the tables, with its default", "[recipe]") {
  const json versions = oracle();
  REQUIRE(versions.size() >= 2);
  int keys = 0;
  for (const auto& [version, architectures] : versions.items()) {
    for (const std::string& type : all_families()) {
      const json& of = architectures.at(type);
      json least = {{"model_type", type}};
      // Generations differ in deepseek_v2's vocabulary, which every file names: ltrain has the newest's.
      const bool other_vocabulary = type == "deepseek_v2" && version.starts_with("4.");
      if (other_vocabulary) least["vocab_size"] = of["defaults"]["vocab_size"];
      const Loaded bare = load(least), whole = load(of["defaults"]);
      INFO(version << " " << type << " " << bare.refusal << whole.refusal);
      REQUIRE((bare.recipe && whole.recipe));
      CHECK(whole.recipe->notes.empty());
      CHECK(model_settings(bare.recipe->model) == model_settings(whole.recipe->model));
      for (const auto& [name, value] : of["defaults"].items()) {
        INFO(name << " = " << value.dump());
        const HfKey* key = find_hf_key(*family_of(type).hf_keys, name);
        REQUIRE(key);
        ++keys;
        if (key->use == HfUse::obeyed && !value.is_null())
          CHECK(same(setting(*bare.recipe, key->path), in_recipe(*key, value)));
        if (name == "rope_parameters")
          CHECK(same(setting(*bare.recipe, "model.rope_theta"),
                     (value.contains("full_attention") ? value["full_attention"] : value)["rope_theta"]));
        // Generations of transformers differ in gpt_oss's weight of a loss that is off: ltrain has the
        // newest's.
        const bool older = type == "gpt_oss" && name == "router_aux_loss_coef" && version.starts_with("4.");
        if (key->use == HfUse::special && (name == "output_router_logits" || name == "router_aux_loss_coef"))
          CHECK(same(key->missing, older ? json(0.001) : value));
      }
      for (const auto& [name, first] : of["other_spellings"].items()) {
        INFO(name << " for " << first);
        const HfKey *a = find_hf_key(*family_of(type).hf_keys, name),
                    *b = find_hf_key(*family_of(type).hf_keys, first.get<std::string>());
        REQUIRE((a && b));
        CHECK(a->path == b->path);
      }
    }
  }
  CHECK(keys > 300);
}

TEST_CASE("null means what transformers' class makes of it, or is refused", "[recipe]") {
  const json versions = oracle();
  int derived = 0, refused = 0;
  for (const std::string& type : all_families())
    for (const HfKey& key : *family_of(type).hf_keys) {
      if (key.use != HfUse::obeyed || key.name.find('.') != std::string::npos) continue;
      INFO(type << " " << key.name);
      const Loaded with = load({{"model_type", type}, {key.name, nullptr}});
      if (!with.recipe) {
        CHECK_THAT(with.refusal, Contains("F: " + key.name + " = null: needs a value"));
        ++refused;
        continue;
      }
      ++derived;
      bool agrees = false;
      for (const auto& [version, architectures] : versions.items()) {
        const json& of = architectures.at(type);
        if (!of["defaults"].contains(key.name)) continue;
        const json &made = of["null"].at(key.name), &otherwise = of["defaults"].at(key.name);
        agrees = agrees || otherwise.is_null() || same(made, setting(*with.recipe, key.path));
      }
      // qwen3_moe, olmoe and llama before 4.48 have head_dim in their models alone, as the width over the
      // heads.
      // Its layers take null for no biases.
      const bool no_biases = key.name == "attention_bias" && !with.recipe->model.attention_bias;
      CHECK((agrees || key.name == "head_dim" || no_biases));
    }
  CHECK(derived >= 8);
  CHECK(refused >= 40);
  CHECK(load({{"model_type", "llama"}, {"hidden_size", nullptr}}).refusal ==
        "F: hidden_size = null: needs a value; without the key it is 4096");
}

TEST_CASE("a changed key changes the model, is refused, or is harmless", "[recipe]") {
  const std::vector<json> values = {true,
                                    false,
                                    0,
                                    1,
                                    2,
                                    4,
                                    8,
                                    16,
                                    32,
                                    64,
                                    96,
                                    128,
                                    0.0625,
                                    0.25,
                                    0.5,
                                    1e-3,
                                    1e-6,
                                    300.0,
                                    1e6,
                                    1024,
                                    "relu",
                                    "silu",
                                    "gelu",
                                    "x",
                                    nullptr,
                                    json::array({0}),
                                    json::array({1, 0}),
                                    json({{"a", 1}})};
  int changed = 0, refused = 0, harmless = 0;
  for (const std::string& type : all_families()) {
    const Loaded base = load(small(type));
    INFO(type << " " << base.refusal);
    REQUIRE(base.recipe);
    const auto before = model_settings(base.recipe->model);
    for (const HfKey& key : *family_of(type).hf_keys) {
      if (key.use == HfUse::special || key.name.find('.') != std::string::npos) continue;
      bool seen = false;
      for (const json& value : values) {
        json config = small(type);
        config[key.name] = value;
        if (key.name == "num_attention_heads" && !family_of(type).grouped_queries && type != "gpt2")
          config["num_key_value_heads"] = value;
        INFO(key.name << " = " << value.dump());
        const Loaded with = load(config);
        if (!with.recipe) {
          CHECK(key.use != HfUse::harmless);
          if (key.use == HfUse::required) CHECK_THAT(with.refusal, Contains("F: " + key.name + " = "));
          ++refused;
          continue;
        }
        const bool differs = model_settings(with.recipe->model) != before;
        if (with.recipe->model.moe.norm_topk_prob && key.path == "model.moe.top_k" && value == 1)
          CHECK_THAT(with.recipe->notes.at(0), Contains("every expert's weight is 1"));
        else
          CHECK(with.recipe->notes.empty());
        if (key.use == HfUse::harmless) {
          CHECK_FALSE(differs);
          ++harmless;
        } else if (key.use == HfUse::required) {
          CHECK_FALSE(differs);
          CHECK(std::count(key.accepted.begin(), key.accepted.end(), value) == 1);
        } else {
          // The accepted value is the one that is computed: given, or derived for null.
          CHECK((value.is_null() || same(setting(*with.recipe, key.path), value)));
          seen = seen || differs;
        }
      }
      if (key.use == HfUse::obeyed) {
        INFO(key.name);
        // An other spelling beside the first one must agree with it, so that it changes nothing here.
        const bool follows = key.name == "num_key_value_heads" && !family_of(type).grouped_queries;
        CHECK((seen || key.alias || follows));
        changed += seen;
      }
      if (key.use == HfUse::harmless || key.use == HfUse::required) CHECK_FALSE(key.reason.empty());
    }
  }
  CHECK(changed >= 50);
  CHECK(refused >= 500);
  CHECK(harmless >= 1000);
}

TEST_CASE("a key of a config.json that nobody knows is refused, unless the recipe says it is harmless",
          "[recipe]") {
  json config = small("llama");
  config["logit_softcap"] = 30.0;
  CHECK(load(config).refusal ==
        "F: logit_softcap = 30.0: is not a key of llama that ltrain knows, and may change what the model "
        "computes; if it does not, set model.from_ignore: [logit_softcap], or --from-ignore logit_softcap of "
        "a command "
        "without a recipe");
  const Loaded passed = load(config, ", from_ignore: [logit_softcap]");
  REQUIRE(passed.recipe);
  REQUIRE(passed.recipe->notes.size() == 1);
  CHECK(passed.recipe->notes[0] == "F: logit_softcap = 30.0 is passed over, as model.from_ignore says");
  CHECK(load(config, ", from_ignore: [logit_softcap, hidden_size]").refusal ==
        "r.yaml:2:3: model.from_ignore: hidden_size: sets model.hidden_size, and cannot be passed over; set "
        "that key in the recipe");
  CHECK_THAT(load(config, ", from_ignore: [logit_softcap, logit]").refusal,
             Contains("logit: is not a key of F"));
  CHECK_THROWS_WITH(parse("model: {from_ignore: [a]}\n"), Contains("has a meaning only with model.from"));
  // A key inside an object, alone.
  json plain = small("llama");
  plain["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  json extra = plain;
  extra["rope_scaling"]["attn_factor"] = 0.878;  // from a published config.json; transformers warns
  CHECK_THAT(load(extra).refusal,
             Contains("F: rope_scaling.attn_factor = 0.878: is not a key of llama that ltrain knows") &&
                 Contains("set model.from_ignore: [rope_scaling.attn_factor], or --from-ignore "
                          "rope_scaling.attn_factor of a command without a recipe"));
  const Loaded inner = load(extra, ", from_ignore: [rope_scaling.attn_factor, rope_scaling.attn_factor]");
  REQUIRE(inner.recipe);
  CHECK(model_settings(inner.recipe->model) == model_settings(load(plain).recipe->model));
  CHECK(inner.recipe->notes ==
        std::vector<std::string>{
            "F: rope_scaling.attn_factor = 0.878 is passed over, as model.from_ignore says"});
  CHECK_THAT(load(extra, ", from_ignore: [rope_scaling.attn_factor, rope_scaling.factor]").refusal,
             Contains("rope_scaling.factor: sets model.rope_scaling.factor, and cannot be passed over"));
  for (const char* key :
       {"rope_scaling.attn", "rope_parameters.attn_factor", "attn_factor", "hidden_size.a", "."})
    CHECK_THAT(load(extra, std::string(", from_ignore: [\"") + key + "\"]").refusal,
               Contains(std::string("model.from_ignore: ") + key + ": is not a key of F"));
  json by_layer = small("gemma3_text");
  for (const char* kind : {"full_attention", "sliding_attention"})
    by_layer["rope_parameters"][kind] = {{"rope_type", "default"}, {"rope_theta", 2e4}, {"note", 1}};
  CHECK_THAT(load(by_layer).refusal, Contains("model.from_ignore: [rope_parameters.full_attention.note]"));
  CHECK(load(by_layer,
             ", from_ignore: [rope_parameters.full_attention.note, "
             "rope_parameters.sliding_attention.note]")
            .refusal == "");
  CHECK_THAT(load(by_layer, ", from_ignore: [rope_parameters.sliding_attention.rope_theta]").refusal,
             Contains("cannot be passed over"));
  // No name of a key reaches a terminal as it is.
  config = small("llama");
  config["a\x1b[31mb"] = "\x1b[2J\u009b";
  const std::string text = load(config).refusal;
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find("\u009b") == std::string::npos);
  CHECK_THAT(text, Contains("a\\x1b[31mb"));
}

TEST_CASE("a sliding window that hides no token is none", "[recipe]") {
  const auto with = [](const std::string& type, const json& more) {
    json config = small(type);
    config.update(more);
    return load(config).refusal;
  };
  const auto refused = [](const std::string& type) {
    return "F: sliding_window = 128: transformers' " + type +
           " has no windows; a window of at least model.max_position_embeddings (512) hides none; nearest "
           "valid value: null, or model.max_position_embeddings: 128";
  };
  for (const char* type : {"llama", "olmo2", "olmoe"}) {
    CHECK(with(type, {{"sliding_window", nullptr}}) == "");
    CHECK(with(type, {{"sliding_window", 512}}) == "");
    CHECK(with(type, {{"sliding_window", 128}}) == refused(type));
    CHECK(with(type, {{"sliding_window", 128}, {"use_sliding_window", false}}) == "");
    CHECK(with(type, {{"sliding_window", "128"}}) ==
          "F: sliding_window = \"128\": needs a number of tokens, or null");
  }
  CHECK_THAT(with("qwen3_moe", {{"layer_types", {"full_attention", "linear_attention"}}}),
             Contains("layer_types: has \"linear_attention\""));
  json config = small("mixtral");
  config["sliding_window"] = 256;
  CHECK(load(config, ", max_position_embeddings: 256").recipe);  // the recipe's form
}

TEST_CASE("windows are of the layers that transformers' class gives them to", "[recipe]") {
  /// "128 of 01", of layers 0 and 1 the latter; or the refusal.
  const auto windows = [](const std::string& type, const json& more) {
    json config = small(type);
    config.update(more);
    const Loaded l = load(config);
    if (!l.recipe) return l.refusal;
    const ModelConfig& m = l.recipe->model;
    return fmt::format("{} {}", m.window(0), m.window(1));
  };
  const json types = {"sliding_attention", "full_attention"};
  for (const char* type : {"mistral", "mixtral"}) {
    CHECK(windows(type, {{"sliding_window", nullptr}}) == "0 0");
    CHECK(windows(type, {{"sliding_window", 512}}) == "0 0");  // hides none
    CHECK(windows(type, {{"sliding_window", 128}}) == "128 128");
    CHECK(windows(type, {{"sliding_window", nullptr}, {"use_sliding_window", false}}) == "0 0");
    CHECK(windows(type, {{"sliding_window", 128}, {"use_sliding_window", false}}) ==
          fmt::format(
              "F: use_sliding_window = false: transformers' {} does not read it, and has the sliding_window "
              "(128); nearest valid value: sliding_window: null, for a model without windows",
              type));
    CHECK(windows(type, {{"sliding_window", 128}, {"layer_types", types}}) ==
          fmt::format("F: layer_types: has \"full_attention\", and all layers of transformers' {} have the "
                      "sliding_window (128)",
                      type));
  }
  CHECK(windows("gemma2", {{"sliding_window", 128}}) == "128 0");
  CHECK(windows("gemma2", {{"sliding_window", 512}}) == "0 0");
  CHECK(windows("gemma2", {{"sliding_window", nullptr}}) == "0 0");
  CHECK(windows("gemma2", {{"sliding_window", 128},
                           {"layer_types", {"full_attention", "sliding_attention"}}}) == "0 128");
  CHECK_THAT(windows("gemma2", {{"sliding_window", 128}, {"use_sliding_window", false}}),
             Contains("transformers' gemma2 does not read it"));
  const auto gemma3 = [&](const json& more) { return windows("gemma3_text", more); };
  CHECK(gemma3({{"sliding_window", 128}}) == "128 128");  // every sixth has none
  CHECK(gemma3({{"sliding_window", 512}}) == "512 512");  // hides none, and rotates by a base of its own
  CHECK(gemma3({{"sliding_window", 128}, {"sliding_window_pattern", 2}}) == "128 0");
  CHECK(gemma3({{"sliding_window", 128}, {"sliding_window_pattern", 1}}) == "0 0");
  CHECK(gemma3({{"sliding_window", 128},
                {"sliding_window_pattern", 2},
                {"layer_types", {"full_attention", "sliding_attention"}}}) == "0 128");
  CHECK(gemma3({{"sliding_window", 128}, {"sliding_window_pattern", 0}}) ==
        "F: sliding_window_pattern = 0: needs a number of layers, of which the last has no window");
  CHECK(windows("mistral", json::object()) == "0 0");               // 4096 of its class, beyond the positions
  CHECK(windows("qwen3_moe", {{"sliding_window", 128}}) == "0 0");  // its class reads it where it is asked to
  CHECK(windows("qwen3_moe", {{"sliding_window", 128}, {"use_sliding_window", true}}) == "128 128");
  for (const char* type : {"qwen2", "qwen3"}) {
    json on = {{"sliding_window", 128}, {"use_sliding_window", true}};
    CHECK(windows(type, {{"sliding_window", 128}}) == "0 0");
    CHECK(windows(type, on) == "0 0");  // from layer 28 of the class on
    on["max_window_layers"] = 1;
    CHECK(windows(type, on) == "0 128");
    on["max_window_layers"] = 0;
    CHECK(windows(type, on) == "128 128");
    on["layer_types"] = types;
    CHECK(windows(type, on) == "128 0");
    on["layer_types"] = {"sliding_attention"};
    CHECK_THAT(windows(type, on),
               Contains("must have an entry for each layer: model.num_hidden_layers (2), and has 1"));
    on["sliding_window"] = nullptr;
    CHECK(windows(type, on) == "F: layer_types: has sliding_attention, and sliding_window is null");
    CHECK_THAT(windows(type, {{"max_window_layers", -1}}),
               Contains("max_window_layers = -1: needs a number"));
  }
  json no_positions = {{"sliding_window", 128}, {"use_sliding_window", true}};
  CHECK(windows("smollm3", no_positions) == "0 0");
  no_positions["no_rope_layer_interval"] = 2;
  CHECK(windows("smollm3", no_positions) == "0 128");
  no_positions["no_rope_layers"] = {0, 1};
  CHECK(windows("smollm3", no_positions) == "128 0");
  CHECK_THAT(windows("smollm3", {{"no_rope_layers", {1, 2}}}), Contains("has 1 for a layer that rotates"));
  CHECK_THAT(load({{"model_type", "llama"}, {"no_rope_layers", {1, 0}}}).refusal,
             Contains("is not a key of llama"));
}

TEST_CASE("transformers' loss for balance is computed where a config.json asks for it", "[recipe]") {
  for (const char* type : {"mixtral", "qwen3_moe", "olmoe"}) {
    const auto balance = [&](const json& more) {
      json config = small(type);
      config.update(more);
      const Loaded l = load(config);
      INFO(l.refusal);
      REQUIRE(l.recipe);
      CHECK(l.recipe->notes.empty());
      return fmt::format("{} {}", l.recipe->model.moe.balance, l.recipe->model.moe.balance_coeff);
    };
    const std::string none = balance(json::object());
    CHECK(none.starts_with("none"));
    CHECK(balance({{"router_aux_loss_coef", 0.25}}) == none);  // transformers' class adds it where asked to
    CHECK(balance({{"output_router_logits", true}, {"router_aux_loss_coef", 0}}) == none);
    CHECK(balance({{"output_router_logits", true}, {"router_aux_loss_coef", 0.25}}) == "hf 0.25");
    CHECK(balance({{"output_router_logits", true}}) ==
          (type == std::string("olmoe") ? "hf 0.01" : "hf 0.001"));
    json config = small(type);
    config.update({{"output_router_logits", "yes"}});
    CHECK_THAT(load(config).refusal, Contains("output_router_logits = \"yes\": needs true or false"));
    config["output_router_logits"] = true;
    const Loaded own = load(config, ", moe: {balance: {kind: switch, coeff: 0.1}}");
    REQUIRE(own.recipe);
    CHECK(own.recipe->model.moe.balance == BalanceLoss::switch_loss);
    CHECK_THAT(own.recipe->notes.at(0),
               Contains("replaces the loss that output_router_logits of F asks for"));
  }
  CHECK_THAT(load({{"model_type", "llama"}, {"output_router_logits", true}}).refusal,
             Contains("is not a key of llama"));
}

TEST_CASE("the shape can come from a Hugging Face config.json", "[recipe]") {
  const TemporaryFile gpt2(
      R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12,
    "n_head": 12, "n_positions": 1024, "n_ctx": 1024, "n_inner": null, "vocab_size": 50257, "layer_norm_epsilon": 1e-05,
    "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
    "initializer_range": 0.02, "summary_type": "cls_index"})");
  const Recipe g = parse("model:\n  from: " + gpt2.path + "\n");
  CHECK(g.model.family->name == "gpt2");
  CHECK(g.model.hidden_size == 768);
  CHECK(g.model.intermediate_size == 3072);
  CHECK(g.model.vocab_size == 50257);
  CHECK(g.model.max_position_embeddings == 1024);
  CHECK(g.model.resid_pdrop == 0.1);
  CHECK(g.model.tie_word_embeddings);
  CHECK(g.notes.empty());
  CHECK(parse(dump_yaml(g)).model.hidden_size == 768);  // the dump needs the file no more

  // A key that the file leaves out has the default of Hugging Face's class, not of ltrain.
  const TemporaryFile bare(R"({"model_type": "llama"})");
  const Recipe b = parse("model:\n  from: " + bare.path + "\n");
  CHECK(b.model.hidden_size == 4096);
  CHECK(b.model.intermediate_size == 11008);
  CHECK(b.model.norm_eps == 1e-6);

  const Recipe smaller = parse("model:\n  from: " + gpt2.path + "\n  n_layer: 2\n");
  CHECK(smaller.model.num_hidden_layers == 2);
  CHECK_THAT(smaller.notes.at(1), Contains("model.num_hidden_layers = 2 replaces 12"));

  const std::string llama =
      R"("model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "vocab_size": 128256,
         "rms_norm_eps": 1e-05, "hidden_act": "silu", "attention_bias": false, "mlp_bias": false, "pretraining_tp": 1,
         "tie_word_embeddings": true, "torch_dtype": "bfloat16", "head_dim": 64)";
  const std::string scaling = R"("factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192, "rope_type": "llama3")";
  const TemporaryFile old_way("{" + llama + R"(, "rope_theta": 500000.0, "rope_scaling": {)" + scaling +
                              "}}");
  const TemporaryFile new_way("{" + llama + R"(, "rope_parameters": {"rope_theta": 500000.0, )" + scaling +
                              "}}");
  const Recipe o = parse("model: {from: " + old_way.path + "}\n"),
               n = parse("model: {from: " + new_way.path + "}\n");
  CHECK(model_settings(o.model) == model_settings(n.model));
  CHECK(o.model.rope_theta == 500000.0);
  CHECK(o.model.rope_scaling.factor == 32.0);
  CHECK(o.model.num_key_value_heads == 8);
  CHECK(o.notes.empty());
}

TEST_CASE("a config.json of an MoE model", "[recipe]") {
  const TemporaryFile file(
      R"({"model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4, "head_dim": 64,
    "moe_intermediate_size": 96, "decoder_sparse_step": 1, "mlp_only_layers": [0, 2], "norm_topk_prob": true,
    "router_aux_loss_coef": 0.001, "hidden_act": "silu", "sliding_window": null, "use_sliding_window": false})");
  const Recipe r = parse("model: {from: " + file.path + "}\n");
  const MoeConfig& m = r.model.moe;
  CHECK((m.num_experts == 16 && m.top_k == 4 && m.intermediate_size == 96 && m.norm_topk_prob));
  CHECK(m.dense_layers == std::vector<int64_t>{0, 2});
  CHECK((!m.in_layer(0) && m.in_layer(1) && r.model.head_dim == 64));
  CHECK(r.notes.empty());
  const TemporaryFile mixtral(R"({"model_type": "mixtral", "num_local_experts": 4})");
  const Recipe x = parse("model: {from: " + mixtral.path + "}\n");
  CHECK((x.model.moe.num_experts == 4 && x.model.moe.top_k == 2 && x.model.moe.intermediate_size == 14336));
}

TEST_CASE("the weight of one expert a token is divided by itself as transformers' class does", "[recipe]") {
  // modeling_mixtral.py divides always; modeling_gpt_oss.py takes a softmax of the chosen; the others have a
  // key.
  const std::map<std::string, std::optional<bool>> divides{{"mixtral", true},   {"gpt_oss", true},
                                                           {"qwen3_moe", {}},   {"olmoe", {}},
                                                           {"deepseek_v3", {}}, {"deepseek_v2", false}};
  for (const std::string& type : family_names([](const Family& f) { return f.experts == Experts::always; }))
    for (const int64_t top_k : {1, 2})
      for (const json& said : {json(), json(true), json(false)}) {
        json config = small(type);
        config["num_experts_per_tok"] = top_k;
        if (type.starts_with("deepseek")) config["n_group"] = config["topk_group"] = 1;
        if (!said.is_null()) config["norm_topk_prob"] = said;
        const Loaded with = load(config);
        INFO(config.dump() << with.refusal);
        const std::optional<bool> fixed = divides.at(type);
        if (fixed && !said.is_null() && said != *fixed) {
          CHECK_THAT(with.refusal, Contains("F: norm_topk_prob = "));
          continue;
        }
        REQUIRE(with.recipe);
        const bool of_class = type == "deepseek_v3";  // without the key
        CHECK(with.recipe->model.moe.norm_topk_prob ==
              fixed.value_or(said.is_null() ? of_class : said.get<bool>()));
      }
}

TEST_CASE("a model_type that is another name of a family is that family", "[recipe]") {
  json config = small("llama");
  const Loaded llama = load(config);
  config["model_type"] = "aquila";
  const Loaded aquila = load(config);
  REQUIRE(aquila.recipe);
  CHECK(model_settings(aquila.recipe->model) == model_settings(llama.recipe->model));
  CHECK(aquila.recipe->notes.empty());
  config["logit_softcap"] = 1;
  CHECK_FALSE(load(config).recipe);  // its keys are llama's
}

TEST_CASE("keys of a llama's config.json that its class does not compute so are refused by name",
          "[recipe]") {
  const auto refused = [](const json& more) {
    json config = small("llama");
    config.update(more);
    return load(config).refusal;
  };
  CHECK_THAT(refused({{"rope_scaling",
                       {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 128},
                        {"attention_factor", 1.5}}}}),
             Contains("rope_scaling.attention_factor"));
  CHECK_THAT(refused({{"layer_types", {"sliding_attention", "full_attention"}}, {"sliding_window", 16}}),
             Contains("F: sliding_window = 16: transformers' llama has no windows"));
  CHECK_THAT(refused({{"layer_types", {"sliding_attention", "full_attention"}}}), Contains("layer_types"));
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    CHECK_THAT(refused({{key, 30.0}}), Contains(std::string("F: ") + key + " = 30.0: is not a key of llama"));
}

TEST_CASE("a config.json that this build cannot compute is refused", "[recipe]") {
  const auto refused = [](const std::string& json) {
    const TemporaryFile file(json);
    try {
      parse("model: {from: " + file.path + "}\n");
    } catch (const Error& e) {
      std::string text = e.what();
      for (size_t at; (at = text.find(file.path)) != std::string::npos;)
        text = text.substr(0, at) + std::string(1, 'F') + text.substr(at + file.path.size());
      return text;
    }
    return std::string("(accepted)");
  };
  CHECK(refused(R"({"model_type": "llama", "hidden_size": 64})") == "(accepted)");  // negative control
  CHECK(refused(R"({"model_type": "llama", "mlp_bias": true})") ==
        "F: mlp_bias = true (biases of the feed-forward): this build computes false only");
  CHECK(refused(R"({"model_type": "mistral", "attention_bias": true})") ==
        "F: attention_bias = true (biases of attention's projections): this build computes false only");
  CHECK(refused(R"({"model_type": "gpt2", "activation_function": "relu"})") ==
        "F: activation_function = \"relu\": is not in this build, which supports silu, gelu_pytorch_tanh, "
        "gelu");
  CHECK(refused(R"({"model_type": "gpt2", "activation_function": "silu"})") ==
        "F: model.hidden_act = silu: gpt2 has a feed-forward without a gate, which this build computes with "
        "gelu and gelu_pytorch_tanh; nearest valid value: gelu");
  CHECK(refused(R"({"model_type": "gpt_oss", "hidden_act": "gelu"})") ==
        "F: hidden_act = \"gelu\" (the feed-forward's activation): this build computes \"silu\" only");
  CHECK(refused(R"({"model_type": "qwen2_moe"})") ==
        "F: model_type = \"qwen2_moe\": is not in this build, which supports gpt2, llama, mistral, qwen2, "
        "qwen3, olmo2, smollm3, phi3, mixtral, qwen3_moe, olmoe, gemma2, gemma3_text, gpt_oss, deepseek_v2, "
        "deepseek_v3");
  CHECK(refused(R"({"model_type": "mixtral", "router_jitter_noise": 0.1})") ==
        "F: router_jitter_noise = 0.1 (noise on what router and experts read; ltrain's "
        "model.moe.router.jitter_eps is on what the router reads): this build computes 0.0 only");
  CHECK(refused(R"({"hidden_size": 64})") ==
        "F: model_type: is missing; a config.json of Hugging Face names the architecture there");
  CHECK(refused(R"({"model_type": "llama", "hidden_size": "64"})") ==
        "F: hidden_size = \"64\": needs an integer, not a quoted text; write 64");
  CHECK(refused(R"({"model_type": "llama", "hidden_size": [64]})") ==
        "F: hidden_size: is not a single value");
  CHECK(refused(R"({"model_type": "llama", "rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}})") ==
        "F: rope_theta = 10000.0: rope_parameters.rope_theta of the same file says 500000.0");
  CHECK(refused(R"({"model_type": "llama", "rope_scaling": {"type": "proportional", "factor": 2.0}})") ==
        "F: rope_scaling.type = \"proportional\": is not in this build, which supports default, linear, "
        "llama3, yarn, longrope");
  CHECK(refused(R"({"model_type": "llama", "model_type": "gpt2"})") ==
        "F: the key \"model_type\" stands twice in one object");
  CHECK(refused("[1]") == "r.yaml:1:9: model.from = F: not a JSON object");
  CHECK_THAT(refused("{"), Contains("F: not JSON: parse error at line 1, column 2"));
  CHECK(refused(std::string(100000, '[')) == "F: not what it is for: nested deeper than 32 levels");
  CHECK_THROWS_WITH(parse("model: {from: /nonexistent/config.json}\n"),
                    Contains("cannot be read: No such file"));
}
