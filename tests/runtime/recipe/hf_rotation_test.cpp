// Rotary embeddings of a Hugging Face config.json, as transformers' classes read them.
#include "tests/runtime/recipe/hf_config_support.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

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
    CHECK(s.factor == 4);  // 512 positions
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
  // The other families have the length inside, or use all positions.
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
  CHECK_THAT(bases({{"rope_parameters", {{"sliding_attention", {{"rope_theta", nullptr}}}}}}),
             Contains("F: rope_parameters.sliding_attention.rope_theta = null: needs a value"));
  // Without windows no layer would rotate by its own base: what hides nothing is not passed over here.
  CHECK_THAT(bases({{"use_sliding_window", false}, {"sliding_window", 4096}}),
             Contains("F: use_sliding_window = false: transformers' gemma3_text does not read it"));
  json config = small("gemma3_text");
  config["sliding_window"] = 128;
  CHECK_THAT(load(config, ", from_ignore: [sliding_window]").refusal,
             Contains("model.from_ignore: sliding_window: also says which layers of gemma3_text rotate by "
                      "rope_local_base_freq"));
  config["layer_types"] = {"full_attention", "full_attention"};
  const Loaded ignored = load(config, ", from_ignore: [layer_types]");
  REQUIRE(ignored.recipe);
  CHECK(ignored.recipe->model.window(0) == 128);  // the same without the key
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
             Contains("rope_scaling.alpha = 1000: is not a key of llama that ltrain knows"));
}
