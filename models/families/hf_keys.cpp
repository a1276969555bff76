#include "models/families/hf_keys.h"

namespace ltrain {

using nlohmann::json;

HfKey hf_obeyed(std::string name, const std::string& path, json missing, bool null_derives) {
  HfKey key;
  key.name = std::move(name);
  key.use = HfUse::obeyed;
  key.path = "model." + path;
  key.null_derives = null_derives || missing.is_null();
  key.missing = std::move(missing);
  return key;
}

HfKey hf_number_or_null(std::string name, const std::string& path, json missing) {
  HfKey key = hf_obeyed(std::move(name), path, std::move(missing));
  key.null_sets = true;
  return key;
}

HfKey hf_alias(std::string name, const std::string& path) {
  HfKey key = hf_obeyed(std::move(name), path, 0);
  key.alias = true;
  return key;
}

HfKey hf_required(std::string name, std::vector<json> accepted, std::string reason) {
  HfKey key;
  key.name = std::move(name);
  key.use = HfUse::required;
  key.accepted = std::move(accepted);
  key.reason = std::move(reason);
  return key;
}

HfKey hf_fixed(std::string name, const std::string& path, json value, std::string reason) {
  HfKey key = hf_required(std::move(name), {std::move(value), nullptr}, std::move(reason));
  key.path = "model." + path;
  return key;
}

HfKey hf_activation(std::string name, json missing) {
  HfKey key = hf_obeyed(std::move(name), "hidden_act", std::move(missing));
  key.words = {{"swish", "silu"},
               {"gelu_new", "gelu_pytorch_tanh"},
               {"gelu_python_tanh", "gelu_pytorch_tanh"},
               {"gelu_python", "gelu"}};
  return key;
}

HfKey hf_special(std::string name, std::string reason, json missing) {
  HfKey key;
  key.name = std::move(name);
  key.use = HfUse::special;
  key.missing = std::move(missing);
  key.reason = std::move(reason);
  return key;
}

HfKey hf_repeated(std::string name, const std::string& path, std::string reason) {
  HfKey key;
  key.name = std::move(name);
  key.path = "model." + path;
  key.reason = std::move(reason);
  return key;
}

void add_harmless(std::vector<HfKey>& rows, const std::string& reason,
                  const std::vector<const char*>& names) {
  for (const char* name : names) {
    HfKey key;
    key.name = name;
    key.reason = reason;
    rows.push_back(std::move(key));
  }
}

void add_common(std::vector<HfKey>& rows) {
  add_harmless(rows, "says who wrote the file, and with what",
               {"architectures", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
                "auto_map", "unsloth_version", "unsloth_fixed", "unsloth_version_fixed"});
  add_harmless(rows, "the type that weights are stored in; the recipe's precision says what is computed",
               {"torch_dtype", "dtype", "use_bfloat16"});
  add_harmless(rows, "a token's number or the tokenizer's class: data.tokenizer says what ids mean",
               {"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
                "tokenizer_class", "model_max_length"});
  add_harmless(rows, "of generation",
               {"use_cache",
                "max_length",
                "min_length",
                "max_new_tokens",
                "do_sample",
                "early_stopping",
                "num_beams",
                "num_beam_groups",
                "diversity_penalty",
                "temperature",
                "top_k",
                "top_p",
                "typical_p",
                "repetition_penalty",
                "length_penalty",
                "no_repeat_ngram_size",
                "encoder_no_repeat_ngram_size",
                "bad_words_ids",
                "num_return_sequences",
                "output_scores",
                "return_dict_in_generate",
                "forced_bos_token_id",
                "forced_eos_token_id",
                "remove_invalid_values",
                "exponential_decay_length_penalty",
                "suppress_tokens",
                "begin_suppress_tokens",
                "prefix",
                "task_specific_params"});
  add_harmless(rows, "what transformers' forward returns beside the logits",
               {"return_dict", "use_return_dict", "output_hidden_states", "output_attentions"});
  add_harmless(rows, "of heads that classify",
               {"id2label", "label2id", "num_labels", "problem_type", "finetuning_task"});
  add_harmless(
      rows, "how transformers runs the same function",
      {"chunk_size_feed_forward", "gradient_checkpointing", "torchscript", "tf_legacy_loss",
       "_attn_implementation", "attn_implementation", "_experts_implementation", "experts_implementation"});
  add_harmless(rows, "of encoders and decoders that are two models",
               {"is_decoder", "tie_encoder_decoder", "cross_attention_hidden_size"});
  rows.push_back(hf_required("is_encoder_decoder", {false, nullptr}, "two models"));
  rows.push_back(hf_required("add_cross_attention", {false, nullptr}, "attention to another model's output"));
  rows.push_back(hf_required("pruned_heads", {json::object(), nullptr}, "heads that are left out"));
  rows.push_back(hf_special("quantization_config", "weights that are stored in fewer bits"));
  rows.push_back(hf_special("model_type", "model.architecture"));
}

json in_recipe(const HfKey& key, const json& value) {
  for (const auto& [word, ours] : key.words)
    if (value == word) return ours;
  return value;
}

json in_config(const HfKey& key, const json& value) {
  return in_recipe(key, key.missing) == value ? key.missing : value;
}

const HfKey* find_hf_key(const std::vector<HfKey>& keys, const std::string& name) {
  for (const HfKey& key : keys)
    if (key.name == name) return &key;
  return nullptr;
}

}  // namespace ltrain
