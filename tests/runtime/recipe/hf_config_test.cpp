// Every key of a Hugging Face config.json is obeyed, refused, or known to be harmless. The oracle is
// transformers' own config classes: tests/golden/hf_configs.json, written by scripts/make-hf-configs.py.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/base/error.h"
#include "models/families/hf_keys.h"
#include "runtime/recipe/recipe.h"
#include "runtime/recipe/schema/schema.h"

using namespace ltrain;
using namespace ltrain::recipe;
using Catch::Contains;
using nlohmann::json;

namespace {

Recipe parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_recipe(text, "r.yaml", overrides);
}

/// Writes `text` to a file of its own that the test removes.
struct TemporaryFile {
  std::string path;
  explicit TemporaryFile(const std::string& text) {
    std::string name = (std::filesystem::temp_directory_path() / "ltrain-config-XXXXXX").string();
    const int fd = mkstemp(name.data());
    REQUIRE(fd >= 0);
    close(fd);
    path = name;
    std::ofstream(path) << text;
  }
  ~TemporaryFile() { std::remove(path.c_str()); }
};

/// A recipe of a config.json, or why it is refused, with F for the file's name.
struct Loaded {
  std::optional<Recipe> recipe;
  std::string refusal;
};
Loaded load(const json& config, const std::string& more = "") {
  const TemporaryFile file(config.dump());
  Loaded out;
  try {
    out.recipe = parse("model: {from: " + file.path + more + "}\n");
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

/// What a key of the recipe has, as JSON.
json setting(const Recipe& r, const std::string& path) {
  const Key* key = find_key(path);
  REQUIRE(key);
  return json::parse(key->write(*key, r, true));
}

bool same(const json& a, const json& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  return a == b;
}

json oracle() {
  std::ifstream in(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/hf_configs.json");
  return json::parse(in);
}

/// A small model of each architecture, with every size given.
json small(const std::string& type) {
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
  if (family_of(type).experts == Experts::always) {
    c.update({{type == "mixtral" || type == "gpt_oss" ? "num_local_experts" : "num_experts", 8},
              {"num_experts_per_tok", 2}});
    if (type == "qwen3_moe") c["moe_intermediate_size"] = 32;
  }
  return c;
}

std::vector<std::string> all_families() {
  return family_names([](const Family&) { return true; });
}

}  // namespace

TEST_CASE("every key of transformers' config classes is in the tables, with its default", "[recipe]") {
  const json versions = oracle();
  REQUIRE(versions.size() >= 2);
  int keys = 0;
  for (const auto& [version, architectures] : versions.items()) {
    for (const std::string& type : all_families()) {
      const json& of = architectures.at(type);
      const Loaded bare = load({{"model_type", type}}), whole = load(of["defaults"]);
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
          CHECK(same(setting(*bare.recipe, key->path), value));
        if (name == "rope_parameters")
          CHECK(same(setting(*bare.recipe, "model.rope_theta"),
                     (value.contains("full_attention") ? value["full_attention"] : value)["rope_theta"]));
        // Generations of transformers differ in gpt_oss's weight of a loss that is off: ltrain has the
        // newest's.
        const bool older = type == "gpt_oss" && name == "router_aux_loss_coef" && version.starts_with("4.");
        if (name == "output_router_logits" || name == "router_aux_loss_coef")
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
      CHECK((agrees || key.name == "head_dim"));
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
        INFO(key.name << " = " << value.dump());
        const Loaded with = load(config);
        if (!with.recipe) {
          CHECK(key.use != HfUse::harmless);
          if (key.use == HfUse::required) CHECK_THAT(with.refusal, Contains("F: " + key.name + " = "));
          ++refused;
          continue;
        }
        const bool differs = model_settings(with.recipe->model) != before;
        CHECK(with.recipe->notes.empty());
        if (key.use == HfUse::harmless) {
          CHECK_FALSE(differs);
          ++harmless;
        } else if (key.use == HfUse::required) {
          CHECK_FALSE(differs);
          CHECK(std::count(key.accepted.begin(), key.accepted.end(), value) == 1);
        } else {
          // What is taken is what is computed: the value, or the derived one for null.
          CHECK((value.is_null() || same(setting(*with.recipe, key.path), value)));
          seen = seen || differs;
        }
      }
      if (key.use == HfUse::obeyed) {
        INFO(key.name);
        // An other spelling beside the first one must agree with it, so that it changes nothing here.
        CHECK((seen || key.alias));
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
        "computes; if it does not, set model.from_ignore: [logit_softcap]");
  const Loaded passed = load(config, ", from_ignore: [logit_softcap]");
  REQUIRE(passed.recipe);
  REQUIRE(passed.recipe->notes.size() == 1);
  CHECK(passed.recipe->notes[0] == "F: logit_softcap = 30.0 is passed over, as model.from_ignore says");
  CHECK(load(config, ", from_ignore: [logit_softcap, hidden_size]").refusal ==
        "r.yaml:1:42: model.from_ignore: hidden_size: sets model.hidden_size, and cannot be passed over; set "
        "that key in the recipe");
  CHECK_THAT(load(config, ", from_ignore: [logit_softcap, logit]").refusal,
             Contains("logit: is not a key of F"));
  CHECK_THROWS_WITH(parse("model: {from_ignore: [a]}\n"), Contains("has a meaning only with model.from"));
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
  CHECK(load(config, ", max_position_embeddings: 256").recipe);  // as the recipe has it
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

TEST_CASE("linear and yarn rotary scaling are read with the keys of theirs alone", "[recipe]") {
  const auto llama = [](const json& scaling) {
    json config = small("llama");
    config["rope_scaling"] = scaling;
    return load(config);
  };
  const Loaded linear = llama({{"rope_type", "linear"}, {"factor", 3}});
  INFO(linear.refusal);
  REQUIRE(linear.recipe);
  CHECK(linear.recipe->model.rope_scaling.type == RopeType::linear);
  CHECK(linear.recipe->model.rope_scaling.factor == 3);
  CHECK(llama({{"rope_type", "linear"}}).refusal ==
        "F: rope_scaling.factor: is missing, and rope_type linear needs it");
  CHECK_THAT(llama({{"type", "linear"}, {"factor", 3}, {"beta_fast", 16}}).refusal,
             Contains("beta_fast = 16") && Contains("yarn"));
  CHECK_THAT(llama({{"type", "linear"}, {"factor", 3}, {"low_freq_factor", 1}}).refusal,
             Contains("low_freq_factor = 1: has no meaning with rope_type linear"));

  const Loaded yarn = llama({{"type", "yarn"},
                             {"factor", 4.0},
                             {"original_max_position_embeddings", 128},
                             {"beta_fast", 16},
                             {"truncate", false},
                             {"mscale", 0.707},
                             {"mscale_all_dim", nullptr}});
  INFO(yarn.refusal);
  REQUIRE(yarn.recipe);
  const RopeScaling& s = yarn.recipe->model.rope_scaling;
  CHECK(s.type == RopeType::yarn);
  CHECK(s.original_max_position_embeddings == 128);
  CHECK(s.beta_fast == 16);
  CHECK(s.beta_slow == 1);  // transformers' default
  CHECK_FALSE(s.truncate);
  CHECK(s.mscale == 0.707);
  CHECK_FALSE(s.mscale_all_dim);
  CHECK_FALSE(s.attention_factor);
  // Without a length of its own it is the model's, as transformers has it.
  const Loaded whole = llama({{"rope_type", "yarn"}, {"factor", 4.0}});
  INFO(whole.refusal);
  REQUIRE(whole.recipe);
  CHECK(whole.recipe->model.rope_scaling.original_max_position_embeddings == 512);
  CHECK(llama({{"rope_type", "yarn"}}).refusal ==
        "F: rope_scaling.factor: is missing, and rope_type yarn needs it");
  CHECK_THAT(llama({{"rope_type", "yarn"}, {"factor", 4.0}, {"short_factor", {1.0}}}).refusal,
             Contains("short_factor"));
}

TEST_CASE("longrope is read as transformers reads it, under its older names in phi3", "[recipe]") {
  const json factors = {{"short_factor", json::array()}, {"long_factor", json::array()}};
  json longrope = factors;
  for (int i = 0; i < 6; ++i) {
    longrope["short_factor"].push_back(1 + i);
    longrope["long_factor"].push_back(1.5 + i);
  }
  const auto phi3 = [&](const char* type, const json& change = json::object(), const json& section = {}) {
    json config = small("phi3");
    config["partial_rotary_factor"] = 0.75;  // 12 of 16 channels
    config["original_max_position_embeddings"] = 128;
    config["rope_scaling"] = longrope;
    config["rope_scaling"]["type"] = type;
    if (section.is_object()) config["rope_scaling"].update(section);
    config.update(change);
    return load(config);
  };
  for (const char* type : {"longrope", "su", "yarn"}) {
    const Loaded l = phi3(type);
    INFO(type << ": " << l.refusal);
    REQUIRE(l.recipe);
    const RopeScaling& s = l.recipe->model.rope_scaling;
    CHECK(l.recipe->model.rotary_dim() == 12);
    CHECK(s.type == RopeType::longrope);
    CHECK(s.original_max_position_embeddings == 128);
    CHECK(s.factor == 4);  // of 512 positions
    CHECK((s.short_factor.back() == 6 && s.long_factor.front() == 1.5));
    CHECK_FALSE(s.attention_factor);
  }
  // transformers' class reads the length beside the section alone.
  CHECK_THAT(phi3("longrope", {{"original_max_position_embeddings", nullptr}}).refusal,
             Contains("original_max_position_embeddings = null"));
  json inside = small("phi3");
  inside["rope_scaling"] = {{"type", "longrope"}, {"original_max_position_embeddings", 128}};
  CHECK_THAT(load(inside).refusal,
             Contains("rope_scaling.original_max_position_embeddings = 128: transformers' "
                      "phi3 reads original_max_position_embeddings beside rope_scaling"));
  CHECK_THAT(phi3("linear", json::object(), {{"factor", 2.0}}).refusal,
             Contains("transformers' phi3 has none of this type; valid: default, longrope"));
  CHECK_THAT(phi3("dynamic").refusal, Contains("transformers' phi3 has no rope_type dynamic"));
  CHECK_THAT(
      phi3("longrope", {{"partial_rotary_factor", 1.0}}).refusal,
      Contains("rope_scaling.short_factor: rope_type longrope needs a number for each pair of channels "
               "that rotates, 8, and it has 6"));
  CHECK_THAT(
      phi3("longrope", {{"partial_rotary_factor", 0.73}}).refusal,
      Contains("partial_rotary_factor = 0.73: turns 11 of the 16 channels of a head, and must turn an even "
               "number of them; nearest valid value: 0.625"));
  CHECK_THAT(phi3("longrope", {{"partial_rotary_factor", 1.5}}).refusal,
             Contains("turns 24 of the 16 channels") && Contains("nearest valid value: 1.0"));
  CHECK_THAT(phi3("longrope", json::object(), {{"long_factor", {1, 2, -3}}}).refusal,
             Contains("number 3 must be above 0"));
  CHECK_THAT(phi3("longrope", json::object(), {{"long_factor", 3}}).refusal,
             Contains("needs a list of numbers"));
  // Of the other families the length is inside, or all positions.
  json llama = small("llama");
  llama["rope_scaling"] = {{"rope_type", "longrope"}, {"factor", 3.0}};
  CHECK_THAT(load(llama).refusal,
             Contains("rope_scaling.short_factor: is missing, and rope_type longrope needs it"));
  std::vector<double> ones(8, 1.0);
  llama["rope_scaling"]["short_factor"] = llama["rope_scaling"]["long_factor"] = ones;
  const Loaded l = load(llama);
  INFO(l.refusal);
  REQUIRE(l.recipe);
  CHECK(l.recipe->model.rope_scaling.original_max_position_embeddings == 512);
  CHECK(l.recipe->model.rope_scaling.factor == 3);
  llama["partial_rotary_factor"] = 0.5;
  CHECK_THAT(load(llama).refusal, Contains("rotation of a part of each head"));
}

TEST_CASE("Gemma 3's rotations by kind of layer, as both generations write them", "[recipe]") {
  const auto with = [](const json& more) {
    json config = small("gemma3_text");
    config.update({{"sliding_window", 128}, {"sliding_window_pattern", 2}});
    config.update(more);
    return load(config);
  };
  const auto bases = [&](const json& more) {
    const Loaded l = with(more);
    if (!l.recipe) return l.refusal;
    const ModelConfig& m = l.recipe->model;
    return fmt::format("{} {} {} {}", m.rope_theta, m.rope_local_base_freq, to_string(m.rope_scaling.type),
                       m.rope_scaling.factor);
  };
  const json linear = {{"rope_type", "linear"}, {"factor", 8.0}};
  CHECK(bases(json::object()) == "1000000 10000 default 1");
  CHECK(bases({{"rope_theta", 500.0}, {"rope_local_base_freq", 40.0}, {"rope_scaling", linear}}) ==
        "500 40 linear 8");
  json full = linear;
  full["rope_theta"] = 500.0;
  const json local = {{"rope_type", "default"}, {"rope_theta", 40.0}};
  CHECK(bases({{"rope_parameters", {{"full_attention", full}, {"sliding_attention", local}}}}) ==
        "500 40 linear 8");
  CHECK(bases({{"rope_parameters", {{"full_attention", linear}, {"sliding_attention", nullptr}}}}) ==
        "1000000 10000 linear 8");
  CHECK(bases({{"rope_parameters", linear}}) ==
        "r.yaml: 2 problems\n  F: rope_parameters.factor = 8.0: transformers' gemma3_text has full_attention "
        "and "
        "sliding_attention there\n  F: rope_parameters.rope_type = \"linear\": transformers' gemma3_text has "
        "full_attention and sliding_attention there");
  CHECK(
      bases({{"rope_parameters", {{"sliding_attention", full}}}}) ==
      "r.yaml: 2 problems\n  F: rope_parameters.sliding_attention.factor = 8.0: this build rotates layers "
      "with a "
      "window by rope_theta alone; nearest valid value: rope_type: \"default\"\n  F: "
      "rope_parameters.sliding_attention.rope_type = \"linear\": this build rotates layers with a window by "
      "rope_theta alone; nearest valid value: rope_type: \"default\"");
  CHECK(bases({{"rope_parameters", {{"full_attention", {{"rope_type", "linear"}}}}}}) ==
        "F: rope_parameters.full_attention.factor: is missing, and rope_type linear needs it");
  CHECK_THAT(load({{"model_type", "gemma3"}, {"text_config", small("gemma3_text")}}).refusal,
             Contains("F: text_config: is a part of a model of more than texts"));
}

TEST_CASE("a class that scales its rotations where nothing is said is not guessed at where null is said",
          "[recipe]") {
  const auto scaling = [](const json& more) {
    json config = small("gpt_oss");
    config.update(more);
    const Loaded l = load(config);
    if (!l.recipe) return l.refusal;
    const RopeScaling& s = l.recipe->model.rope_scaling;
    return fmt::format("{} {} {}", to_string(s.type), s.factor, s.truncate);
  };
  CHECK(scaling(json::object()) == "yarn 32 false");
  CHECK(scaling({{"rope_scaling", {{"rope_type", "default"}}}}) == "default 1 true");
  CHECK_THAT(
      scaling({{"rope_scaling", nullptr}}),
      Contains("F: rope_scaling = null: generations of transformers take it for different rotations; nearest "
               "valid value: {\"rope_type\": \"default\"}"));
}

TEST_CASE("dynamic rotary scaling is none where no sequence is longer than the positions", "[recipe]") {
  const json dynamic = {{"rope_type", "dynamic"}, {"factor", 2.5}};
  int families = 0;
  for (const std::string& type : all_families()) {
    const Family& f = family_of(type);
    if (f.traits.positions != PositionEmbedding::rotary || !f.rope_types.empty()) continue;
    ++families;
    INFO(type);
    json without = small(type);
    if (!f.hf_default_rope.empty()) without["rope_scaling"] = {{"rope_type", "default"}};
    const Loaded plain = load(without);
    REQUIRE(plain.recipe);
    for (const char* section : {"rope_scaling", "rope_parameters"}) {
      json config = small(type);
      const bool by_layer = f.local_rotation && section == std::string("rope_parameters");
      config[section] = by_layer ? json{{"full_attention", dynamic}} : dynamic;
      const Loaded with = load(config);
      INFO(with.refusal);
      REQUIRE(with.recipe);
      CHECK(model_settings(with.recipe->model) == model_settings(plain.recipe->model));
      REQUIRE(with.recipe->notes.size() == 1);
      CHECK(with.recipe->notes[0] ==
            fmt::format("F: {}.rope_type = \"dynamic\" changes nothing up to max_position_embeddings (512), "
                        "and no sequence is longer here; ltrain export writes the default in its place",
                        std::string(section) + (by_layer ? ".full_attention" : "")));
    }
  }
  CHECK(families >= 9);
  const auto llama = [](const json& scaling, const std::string& more = "") {
    json config = small("llama");
    config["rope_scaling"] = scaling;
    return load(config, more);
  };
  // Beside rope_theta, by the older name, and with positions that the scaling does not read.
  const Loaded older = llama(
      {{"type", "dynamic"}, {"factor", 4}, {"rope_theta", 5e5}, {"original_max_position_embeddings", 128}});
  INFO(older.refusal);
  REQUIRE(older.recipe);
  CHECK(older.recipe->model.rope_theta == 5e5);
  CHECK(older.recipe->model.rope_scaling.factor == 1.0);
  CHECK_THAT(older.recipe->notes.at(0), Contains("rope_scaling.type = \"dynamic\""));
  // A longer sequence would need it: refused, and a shorter one is not.
  CHECK(llama(dynamic, ", max_position_embeddings: 1024").refusal ==
        "F: rope_scaling.rope_type = \"dynamic\": rotates by an angle that depends on the length of a "
        "sequence of more than max_position_embeddings (512), and model.max_position_embeddings is 1024; "
        "nearest valid value: 512");
  CHECK(llama(dynamic, ", max_position_embeddings: 256").recipe);
  const Loaded own =
      llama(dynamic, ", max_position_embeddings: 1024, rope_scaling: {rope_type: llama3, factor: 8.0}");
  INFO(own.refusal);
  REQUIRE(own.recipe);  // another scaling in its place, which goes with any length
  CHECK(own.recipe->model.rope_scaling.factor == 8.0);
  CHECK_THAT(own.recipe->notes.at(1),
             Contains("model.rope_scaling.rope_type = llama3 replaces \"dynamic\" of F"));
  CHECK(llama({{"rope_type", "dynamic"}}).refusal ==
        "F: rope_scaling.factor: is missing, and rope_type dynamic needs it");
  for (const json& bad : std::vector<json>{0.5, "2", nullptr})
    CHECK_THAT(llama({{"rope_type", "dynamic"}, {"factor", bad}}).refusal,
               Contains("rope_scaling.factor = " + bad.dump() + ": needs a number of at least 1"));
  CHECK(llama({{"rope_type", "dynamic"}, {"type", "linear"}, {"factor", 2.0}}).refusal ==
        "F: rope_scaling.type = \"linear\": differs from rope_type, \"dynamic\"");
  // Keys of other types are refused beside it as they are alone.
  CHECK_THAT(llama({{"rope_type", "dynamic"}, {"factor", 2.0}, {"beta_fast", 32}}).refusal,
             Contains("rope_scaling.beta_fast = 32.0: has a meaning only with") && Contains("yarn"));
  CHECK_THAT(llama({{"rope_type", "dynamic"}, {"factor", 2.0}, {"alpha", 1000}}).refusal,
             Contains("rope_scaling.alpha = 1000: is not a key that ltrain knows"));
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

  // What the file leaves out has the default of Hugging Face's class, not of ltrain.
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
  CHECK(refused(R"({"model_type": "llama", "attention_bias": true})") ==
        "F: attention_bias = true (biases of attention's projections): this build computes false only");
  CHECK(refused(R"({"model_type": "gpt2", "activation_function": "relu"})") ==
        "F: activation_function = \"relu\" (the feed-forward's activation): this build computes \"gelu_new\" "
        "only");
  CHECK(refused(R"({"model_type": "qwen2_moe"})") ==
        "F: model_type = \"qwen2_moe\": is not in this build, which supports gpt2, llama, mistral, qwen2, "
        "qwen3, olmo2, smollm3, phi3, mixtral, qwen3_moe, olmoe, gemma2, gemma3_text, gpt_oss");
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
  CHECK(refused(R"({"model_type": "llama", "model_type": "gpt2"})") == "F: model_type: given twice");
  CHECK(refused("[1]") == "r.yaml:1:9: model.from = F: not a JSON object");
  CHECK(refused("{") == "r.yaml:1:9: model.from = F: not a JSON object");
  CHECK(refused(std::string(100000, '[')) == "r.yaml:1:9: model.from = F: not a JSON object");
  CHECK_THROWS_WITH(parse("model: {from: /nonexistent/config.json}\n"),
                    Contains("cannot be read: No such file"));
}
