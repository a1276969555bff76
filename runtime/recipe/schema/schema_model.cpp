#include <algorithm>

#include "models/attention/rope_angles.h"
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/moe_keys.h"
#include "runtime/recipe/schema/schema_parts.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::recipe {
namespace {

/// Key of rotary families only. It is an error elsewhere, because its author expects another model.
Key rotary_only(Key key) {
  const auto rotary = [](const Family& f) { return f.traits.positions == PositionEmbedding::rotary; };
  key.when("model.architecture: " + either(family_names(rotary)), true,
           [rotary](const Recipe& r) { return rotary(*r.model.family); });
  return key;
}

/// Key of the families selected by `which`; an error elsewhere.
Key in_families(Key key, bool (*which)(const Family&)) {
  key.when("model.architecture: " + either(family_names(which)), true,
           [which](const Recipe& r) { return which(*r.model.family); });
  return key;
}

/// Key that only some types of rotary scaling use.
Key of_rope_types(Key key, std::vector<RopeType> types) {
  std::vector<std::string> names;
  for (const RopeType type : types) names.emplace_back(to_string(type));
  key.when("model.rope_scaling.rope_type: " + either(names), true, [types](const Recipe& r) {
    return std::find(types.begin(), types.end(), r.model.rope_scaling.type) != types.end();
  });
  return key;
}

/// Adds the type of RoPE scaling, and what most types have.
void add_rope_type_keys(std::vector<Key>& t) {
  t.push_back(rotary_only(choice("model.rope_scaling.rope_type", LT_MEMBER(model.rope_scaling.type),
                                 {"dynamic", "proportional"},
                                 "default: none. linear: divides all frequencies by factor. llama3: divides "
                                 "low frequencies. yarn: divides low frequencies and scales attention. "
                                 "longrope: divides each frequency by its own factor and scales attention.")
                              .loads_with_any()
                              .say({{"su", "longrope"}})
                              .alias({"type"})
                              .derived("llama3 where there is a factor, else default", [](Recipe& r) {
                                r.model.rope_scaling.type =
                                    r.model.rope_scaling.factor == 1.0 ? RopeType::none : RopeType::llama3;
                              })));
  t.push_back(rotary_only(
      number("model.rope_scaling.factor", LT_MEMBER(model.rope_scaling.factor), "1: no scaling.")
          .at_least(1)
          .loads_with_any()
          .derived("longrope: max_position_embeddings / original_max_position_embeddings; others: 1",
                   [](Recipe& r) {
                     ModelConfig& m = r.model;
                     m.rope_scaling.factor =
                         m.rope_scaling.type == RopeType::longrope ? longrope_factor(m) : 1;
                   })));
  t.push_back(
      rotary_only(number("model.rope_scaling.low_freq_factor", LT_MEMBER(model.rope_scaling.low_freq_factor),
                         "llama3: wavelengths longer than original / this are stretched fully.")
                      .above(0)
                      .loads_with_any()));
  t.push_back(rotary_only(number("model.rope_scaling.high_freq_factor",
                                 LT_MEMBER(model.rope_scaling.high_freq_factor),
                                 "llama3: wavelengths shorter than original / this are not changed.")
                              .above(0)
                              .loads_with_any()));
  t.push_back(rotary_only(integer("model.rope_scaling.original_max_position_embeddings",
                                  LT_MEMBER(model.rope_scaling.original_max_position_embeddings),
                                  "llama3, yarn, longrope: sequence length of the original training.")
                              .between(1, kMaxIds)
                              .loads_with_any()));
}

/// Adds the settings of yarn; longrope shares attention_factor.
void add_yarn_keys(std::vector<Key>& t) {
  const auto yarn = [&](Key key) {
    t.push_back(of_rope_types(std::move(key.loads_with_any()), {RopeType::yarn}));
  };
  yarn(number("model.rope_scaling.beta_fast", LT_MEMBER(model.rope_scaling.beta_fast),
              "yarn: channels that turn more often than this within the original length are not changed.")
           .above(0));
  yarn(number("model.rope_scaling.beta_slow", LT_MEMBER(model.rope_scaling.beta_slow),
              "yarn: channels that turn less often than this within the original length are stretched fully.")
           .above(0));
  yarn(truth("model.rope_scaling.truncate", LT_MEMBER(model.rope_scaling.truncate),
             "yarn: rounds the range between the two to full channels."));
  t.push_back(of_rope_types(
      number("model.rope_scaling.attention_factor", LT_MEMBER(model.rope_scaling.attention_factor),
             "Factor on queries and keys when they rotate; null: yarn: 0.1 ln(factor) + 1, or from mscale; "
             "longrope: sqrt(1 + ln(factor) / ln(original_max_position_embeddings)).")
          .above(0)
          .loads_with_any(),
      {RopeType::yarn, RopeType::longrope}));
  yarn(number("model.rope_scaling.mscale", LT_MEMBER(model.rope_scaling.mscale),
              "With mscale_all_dim, attention_factor is (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim "
              "ln(factor) + 1).")
           .at_least(0));
  yarn(number("model.rope_scaling.mscale_all_dim", LT_MEMBER(model.rope_scaling.mscale_all_dim),
              "With mscale; see there.")
           .at_least(0));
}

/// Adds the factors of longrope.
void add_longrope_keys(std::vector<Key>& t) {
  const auto longrope = [&](Key key) {
    t.push_back(of_rope_types(std::move(key.loads_with_any()), {RopeType::longrope}));
  };
  longrope(numbers(
      "model.rope_scaling.short_factor",
      [](Recipe& r) -> std::vector<double>& { return r.model.rope_scaling.short_factor; },
      "Divisors of the frequencies, fastest first, if data.seq_length is at most "
      "original_max_position_embeddings."));
  longrope(numbers(
      "model.rope_scaling.long_factor",
      [](Recipe& r) -> std::vector<double>& { return r.model.rope_scaling.long_factor; },
      "Divisors of the frequencies, fastest first, if data.seq_length is above "
      "original_max_position_embeddings."));
}

void add_rope_scaling_keys(std::vector<Key>& t) {
  add_rope_type_keys(t);
  add_yarn_keys(t);
  add_longrope_keys(t);
}

/// Adds the keys of latent attention.
void add_latent_keys(std::vector<Key>& t) {
  const auto add = [&](Key key) {
    t.push_back(in_families(std::move(key), [](const Family& f) { return f.traits.latent_attention; }));
  };
  add(integer("model.q_lora_rank", LT_MEMBER(model.latent.q_lora_rank),
              "Width of the latent from which queries are projected; null: from the layer's input.")
          .between(1, kMaxDim));
  add(integer("model.kv_lora_rank", LT_MEMBER(model.latent.kv_lora_rank),
              "Width of the latent from which keys and values are projected.")
          .between(1, kMaxDim));
  add(integer("model.qk_nope_head_dim", LT_MEMBER(model.latent.qk_nope_head_dim),
              "Channels of a query and a key without rotation.")
          .between(1, 65536));
  add(integer("model.qk_rope_head_dim", LT_MEMBER(model.latent.qk_rope_head_dim),
              "Channels of a query and a key with rotation. All heads share those of the keys.")
          .between(2, 65536));
  add(integer("model.v_head_dim", LT_MEMBER(model.latent.v_head_dim), "Channels of a value.")
          .between(1, 65536));
}

/// Adds the keys of multi-token prediction.
void add_module_keys(std::vector<Key>& t) {
  const auto predicts = [](const Family& f) { return f.traits.multi_token_prediction; };
  t.push_back(in_families(
      integer("model.num_nextn_predict_layers", LT_MEMBER(model.num_nextn_predict_layers),
              "Modules of multi-token prediction after the last layer. Each is a layer that predicts one "
              "more token. The value of a config.json is not used: without this key its modules are ignored.")
          .between(0, 16)
          .alias({"mtp_num_layers"})
          .loads_with_any(),
      predicts));
  t.push_back(number("model.mtp_loss_scaling_factor", LT_MEMBER(model.mtp_loss_scaling_factor),
                     "Weight of the mean loss of the modules in the objective.")
                  .at_least(0)
                  .resumes(OnResume::any)
                  .when("model.architecture: deepseek_v3 and model.num_nextn_predict_layers above 0", true,
                        [predicts](const Recipe& r) {
                          return r.model.num_nextn_predict_layers > 0 && predicts(*r.model.family);
                        }));
}

/// Adds the keys of layers with different attention.
void add_layer_keys(std::vector<Key>& t) {
  const auto windows = [](const Family& f) { return f.windows != WindowLayers::none; };
  const auto without = [](const Family& f) { return f.layers_without_positions; };
  t.push_back(in_families(integer("model.no_rope_layer_interval", LT_MEMBER(model.no_rope_layer_interval),
                                  "Every N-th layer does not rotate; 0: all rotate.")
                              .between(0, 10000)
                              .derived("4",
                                       [](Recipe& r) {
                                         r.model.no_rope_layer_interval =
                                             r.model.family->defaults.no_rope_layer_interval;
                                       }),
                          without));
  t.push_back(in_families(
      integers(
          "model.no_rope_layers", [](Recipe& r) -> std::vector<int64_t>& { return r.model.no_rope_layers; },
          "By layer, as in transformers: 1 rotates queries and keys, 0 does not.", 0)
          .derived("0 in every no_rope_layer_interval-th layer, 1 in the others",
                   [](Recipe& r) {
                     ModelConfig& m = r.model;
                     m.no_rope_layers.clear();
                     if (m.no_rope_layer_interval < 1 || !m.family->layers_without_positions) return;
                     for (int64_t i = 1; i <= m.num_hidden_layers; ++i)
                       m.no_rope_layers.push_back(i % m.no_rope_layer_interval != 0);
                   }),
      without));
  t.push_back(in_families(integer("model.sliding_window", LT_MEMBER(model.sliding_window),
                                  "Number of keys that a query sees, including its own; null: all before it.")
                              .between(1, kMaxIds),
                          windows));
  t.push_back(in_families(
      words<LayerType>(
          "model.layer_types", [](Recipe& r) -> std::vector<LayerType>& { return r.model.layer_types; },
          "By layer: sliding_attention uses the sliding_window. []: all do.")
          .derived(
              "with a window gemma2, gpt_oss: full_attention in every 2nd layer, gemma3_text: in every 6th, "
              "sliding_attention in the others; other families: []",
              [](Recipe& r) {
                ModelConfig& m = r.model;
                m.layer_types.clear();
                if (!m.sliding_window || m.family->windows != WindowLayers::but_every_nth) return;
                for (int64_t i = 1; i <= m.num_hidden_layers; ++i)
                  m.layer_types.push_back(i % m.family->defaults.full_attention_interval
                                              ? LayerType::sliding_attention
                                              : LayerType::full_attention);
              }),
      windows));
}

/// Adds the keys of attention scores and of logits.
void add_score_keys(std::vector<Key>& t) {
  const auto capped = [](const Family& f) { return f.soft_caps; };
  t.push_back(in_families(number("model.query_pre_attn_scalar", LT_MEMBER(model.query_pre_attn_scalar),
                                 "Attention scores are divided by the square root of this.")
                              .above(0)
                              .derived("head_dim",
                                       [](Recipe& r) {
                                         ModelConfig& m = r.model;
                                         m.query_pre_attn_scalar =
                                             m.family->soft_caps ? static_cast<double>(m.head_dim) : 0;
                                       }),
                          capped));
  t.push_back(in_families(number("model.attn_logit_softcapping", LT_MEMBER(model.attn_logit_softcapping),
                                 "Scores become this times tanh(score / this); null: not changed.")
                              .above(0)
                              .derived("gemma2: 50; others: null",
                                       [](Recipe& r) {
                                         r.model.attn_logit_softcapping =
                                             r.model.family->defaults.attn_logit_softcapping;
                                       }),
                          capped));
  t.push_back(in_families(number("model.final_logit_softcapping", LT_MEMBER(model.final_logit_softcapping),
                                 "Logits become this times tanh(logit / this); null: not changed.")
                              .above(0)
                              .derived("gemma2: 30; others: null",
                                       [](Recipe& r) {
                                         r.model.final_logit_softcapping =
                                             r.model.family->defaults.final_logit_softcapping;
                                       }),
                          capped));
}

/// Adds the feed-forward's activation function, and the biases and limits of attention's projections.
void add_function_keys(std::vector<Key>& t) {
  const auto own = [](const Family& f) { return activation_of(f.traits.feed_forward); };
  Key act = choice<Activation>(
      "model.hidden_act", LT_MEMBER(model.hidden_act),
      {{"silu", Activation::silu}, {"gelu_pytorch_tanh", Activation::gelu_tanh}, {"gelu", Activation::gelu}},
      {"relu", "relu2", "quick_gelu"},
      "Activation function of feed-forward and experts. silu: x sigmoid(x). gelu: x times the normal "
      "distribution's integral up to x, by erf. gelu_pytorch_tanh: its approximation by tanh.");
  const auto set = act.set;
  act.set = [set, own](const Key& k, Recipe& r, const Node& node) {
    const ValueError wrong = set(k, r, node);
    if (!r.model.hidden_act) r.model.hidden_act = own(*r.model.family);
    return wrong;
  };
  act.say({{"swish", "silu"}, {"gelu_new", "gelu_pytorch_tanh"}})
      .alias({"activation_function", "hidden_activation"})
      .derived("gpt2, gemma2, gemma3_text: gelu_pytorch_tanh; others: silu",
               [own](Recipe& r) { r.model.hidden_act = own(*r.model.family); })
      .was([own](const Family& f) { return own(f) ? std::string(to_string(*own(f))) : ""; });
  t.push_back(in_families(std::move(act),
                          [](const Family& f) { return activation_of(f.traits.feed_forward).has_value(); }));
  t.push_back(
      in_families(truth("model.attention_bias", LT_MEMBER(model.attention_bias),
                        "The projections of queries, keys, values and attention's output have biases.")
                      .was([](const Family& f) { return f.attention_biases ? "false" : ""; }),
                  [](const Family& f) { return f.attention_biases; }));
  t.push_back(in_families(number("model.clip_qkv", LT_MEMBER(model.clip_qkv),
                                 "Queries, keys and values are clamped to this and its negative, after their "
                                 "norms and before their rotation; null: not changed.")
                              .above(0),
                          [](const Family& f) { return f.clips_qkv; }));
}

Key architecture() {
  std::vector<std::pair<std::string, const Family*>> built;
  std::string help;
  for (const Family* f : families()) {
    built.emplace_back(f->name, f);
    help += (help.empty() ? "" : " ") + f->name + ": " + f->summary;
  }
  std::vector<std::string> unbuilt;
  for (const char* name : {"qwen2_moe", "olmo"})
    if (!find_family(name)) unbuilt.emplace_back(name);
  return choice<const Family*>("model.architecture", LT_MEMBER(model.family), built, unbuilt, help)
      .alias({"model_type"});
}

/// Adds the source of the shape, and the family.
void add_model_source_keys(std::vector<Key>& t) {
  Key from;
  from.path = "model.from";
  from.type = "text";
  from.help =
      "A Hugging Face config.json for the shape of the model; keys in the recipe override it. A Hugging Face "
      "folder also becomes checkpoint.load.path, so the run starts with its weights.";
  from.dumped = false;
  from.set = [](const Key&, Recipe&, const Node& node) -> std::string {
    std::string path;
    return node.kind == Node::null ? "" : read_text(node, path);
  };
  from.write = [](const Key&, const Recipe&, bool) { return std::string("null"); };
  t.push_back(std::move(from));
  Key ignore = texts("model.from_ignore", LT_MEMBER(from_ignore), "key", "[my_note]",
                     "Keys of that config.json to ignore, because they do not change the computation or on "
                     "the user's responsibility; rope_scaling.KEY is a key inside an object. An unknown key "
                     "that is not listed is an error.");
  ignore.dumped = false;
  t.push_back(std::move(ignore));
  t.push_back(architecture());
}

/// Adds widths, heads, layers and positions.
void add_shape_keys(std::vector<Key>& t) {
  t.push_back(integer("model.vocab_size", LT_MEMBER(model.vocab_size), "Rows of the embedding.")
                  .between(1, kMaxIds)
                  .derived("the tokenizer's: byte 257, gpt2 50257; huggingface: required",
                           [](Recipe& r) { r.model.vocab_size = r.data.tokenizer.kind->vocab_size; }));
  t.push_back(integer("model.hidden_size", LT_MEMBER(model.hidden_size), "Width of the residual stream.")
                  .between(1, kMaxDim)
                  .alias({"n_embd"}));
  t.push_back(integer("model.num_hidden_layers", LT_MEMBER(model.num_hidden_layers), "Transformer blocks.")
                  .between(1, 10000)
                  .alias({"num_layers", "n_layer"}));
  t.push_back(integer("model.num_attention_heads", LT_MEMBER(model.num_attention_heads), "Query heads.")
                  .between(1, 65536)
                  .alias({"n_head"}));
  t.push_back(
      integer("model.num_key_value_heads", LT_MEMBER(model.num_key_value_heads), "Key and value heads.")
          .between(1, 65536)
          .alias({"num_query_groups"})
          .derived("num_attention_heads",
                   [](Recipe& r) { r.model.num_key_value_heads = r.model.num_attention_heads; }));
  add_latent_keys(t);
  add_module_keys(t);
  t.push_back(integer("model.head_dim", LT_MEMBER(model.head_dim), "Width of a head.")
                  .between(1, 65536)
                  .alias({"kv_channels"})
                  .derived("hidden_size / num_attention_heads; with latent attention qk_nope_head_dim + "
                           "qk_rope_head_dim",
                           [](Recipe& r) {
                             ModelConfig& m = r.model;
                             m.head_dim = m.traits().latent_attention
                                              ? m.latent.qk_nope_head_dim + m.latent.qk_rope_head_dim
                                              : m.hidden_size / m.num_attention_heads;
                           }));
  t.push_back(
      integer("model.intermediate_size", LT_MEMBER(model.intermediate_size), "Width of the MLP.")
          .between(1, 4 * kMaxDim)
          .alias({"ffn_hidden_size", "n_inner"})
          .derived(join(family_names([](const Family& f) { return !has_gate(f.traits.feed_forward); })) +
                       ": 4 hidden_size; others: 8/3 hidden_size rounded up to a multiple of 256",
                   [](Recipe& r) {
                     r.model.intermediate_size =
                         r.model.family->default_intermediate_size(r.model.hidden_size);
                   }));
  t.push_back(integer("model.max_position_embeddings", LT_MEMBER(model.max_position_embeddings),
                      "Maximum sequence length; with learned positions the rows of their embedding.")
                  .between(1, kMaxIds)
                  .loads_with_any()
                  .alias({"n_positions"}));
}

/// Adds the base of RoPE, and the channels that rotate.
void add_rope_keys(std::vector<Key>& t) {
  t.push_back(
      rotary_only(number("model.rope_theta", LT_MEMBER(model.rope_theta), "Base of the rotary angles.")
                      .at_least(1)
                      .loads_with_any()
                      .alias({"rotary_base"})
                      .derived("gemma3_text: 1000000; gpt_oss: 150000; others: 10000",
                               [](Recipe& r) { r.model.rope_theta = r.model.family->defaults.rope_theta; })));
  const auto local = [](const Family& f) { return f.local_rotation; };
  t.push_back(
      number("model.rope_local_base_freq", LT_MEMBER(model.rope_local_base_freq),
             "Base of the rotary angles of layers with the sliding window, to which rope_scaling does not "
             "apply.")
          .at_least(1)
          .loads_with_any()
          .derived(
              "10000",
              [](Recipe& r) { r.model.rope_local_base_freq = r.model.family->defaults.rope_local_base_freq; })
          .when("model.sliding_window and model.architecture: " + either(family_names(local)), true,
                [local](const Recipe& r) { return local(*r.model.family) && r.model.sliding_window; }));
  t.push_back(in_families(
      number("model.partial_rotary_factor", LT_MEMBER(model.partial_rotary_factor),
             "Share of each head's channels that rotate: the first head_dim times this, rounded down.")
          .above(0),
      [](const Family& f) { return f.partial_rotary; }));
  add_function_keys(t);
  add_layer_keys(t);
  add_score_keys(t);
  add_rope_scaling_keys(t);
}

/// Adds norms, tied embeddings and initial values.
void add_initial_value_keys(std::vector<Key>& t) {
  t.push_back(number("model.rms_norm_eps", LT_MEMBER(model.norm_eps), "Epsilon of the norms.")
                  .above(0)
                  .alias({"layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon", "norm_eps"}));
  t.push_back(
      truth("model.tie_word_embeddings", LT_MEMBER(model.tie_word_embeddings),
            "The output layer uses the embedding's weights.")
          .derived(
              join(family_names([](const Family& f) { return f.defaults.tie_word_embeddings; })) +
                  ": true; others: false",
              [](Recipe& r) { r.model.tie_word_embeddings = r.model.family->defaults.tie_word_embeddings; }));
  t.push_back(number("model.initializer_range", LT_MEMBER(model.initializer_range),
                     "Standard deviation of the initial matmul and embedding weights.")
                  .resumes(OnResume::any)
                  .changes(Effect::nothing)
                  .above(0)
                  .alias({"init_method_std"}));
  t.push_back(
      choice<bool>("model.output_layer_init_method", LT_MEMBER(model.scaled_init),
                   {{"scaled_normal", true}, {"normal", false}}, {},
                   "Initial weights of the projections into the residual stream (attention, feed-forward, "
                   "experts). scaled_normal: standard deviation initializer_range / sqrt(2 "
                   "num_hidden_layers), the default of Megatron-LM and of transformers' gpt2. normal: "
                   "initializer_range, as in transformers' llama, mixtral, qwen3_moe and olmoe.")
          .resumes(OnResume::any)
          .changes(Effect::nothing));
}

/// Adds dropout.
void add_dropout_keys(std::vector<Key>& t) {
  t.push_back(number("model.embd_pdrop", LT_MEMBER(model.embd_pdrop), "Dropout after the embeddings.")
                  .resumes(OnResume::any)
                  .between(0, 0.99));
  t.push_back(number("model.attn_pdrop", LT_MEMBER(model.attn_pdrop), "Dropout of attention probabilities.")
                  .resumes(OnResume::any)
                  .between(0, 0.99)
                  .alias({"attention_dropout"}));
  t.push_back(
      number("model.resid_pdrop", LT_MEMBER(model.resid_pdrop), "Dropout before each residual addition.")
          .resumes(OnResume::any)
          .between(0, 0.99));
}

}  // namespace

void add_model_keys(std::vector<Key>& t) {
  add_model_source_keys(t);
  add_shape_keys(t);
  add_rope_keys(t);
  add_initial_value_keys(t);
  add_dropout_keys(t);
  add_moe_keys(t);
}

}  // namespace ltrain::recipe
