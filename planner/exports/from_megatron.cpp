#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <regex>
#include <sstream>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/printable.h"
#include "planner/exports/command_words.h"
#include "planner/exports/megatron.h"
#include "planner/exports/megatron_flags.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::exports {
namespace {

using Given = std::map<std::string, std::vector<std::string>, std::less<>>;

bool is_flag(const std::string& word) { return word.rfind("--", 0) == 0; }

/// Words after the script, or all words without a script. torchrun has its own flags before the script.
std::vector<std::string> flags_alone(std::vector<std::string> words) {
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i].size() > 3 && words[i].compare(words[i].size() - 3, 3, ".py") == 0 &&
        (i == 0 || !is_flag(words[i - 1]) || i == 1))
      return {words.begin() + static_cast<long>(i) + 1, words.end()};
  return words;
}

class Reader {
 public:
  Reader(const std::string& line, int world) : world_(world) {
    read_flags(flags_alone(command_words(line)));
    raise();
    family();
    widths();
    latents();
    batch();
    precision();
    layout();
    recompute();
    experts();
    rows();
    raise();
    defaults();
  }

  Imported result() {
    Imported out;
    out.notes = notes_;
    for (const std::string& note : notes_) out.yaml += "# " + note + "\n";
    out.yaml += yaml();
    return out;
  }

 private:
  void problem(const std::string& text) { problems_.push_back("ltrain plan --from-megatron: " + text); }
  void raise() {
    if (!problems_.empty()) fail(ExitCode::usage, "{}", fmt::join(problems_, "\n"));
  }

  void read_flags(const std::vector<std::string>& words) {
    std::vector<std::string> names;
    for (const MegatronFlag& f : megatron_flags()) names.emplace_back(f.flag);
    for (size_t i = 0; i < words.size();) {
      std::string word = words[i++];
      std::vector<std::string> values;
      const size_t equals = word.find('=');
      if (is_flag(word) && equals != std::string::npos) {
        values.push_back(word.substr(equals + 1));
        word.resize(equals);
      }
      const MegatronFlag* f = find_flag(word);
      while (i < words.size() && !is_flag(words[i])) {
        if (f && f->arguments >= 0 && static_cast<int>(values.size()) >= f->arguments) break;
        values.push_back(words[i++]);
      }
      if (!f) {
        const std::string near = nearest_word(word, names);
        problem(fmt::format("{}: unknown flag{}", printable(word),
                            near.empty() ? "" : "; nearest known one: " + near));
      } else if (f->arguments >= 0 && static_cast<int>(values.size()) != f->arguments) {
        problem(fmt::format("{}: takes {} value{} (got {})", word, f->arguments, f->arguments == 1 ? "" : "s",
                            values.size()));
      } else if (f->kind == FlagKind::refused && !is_standard(*f, values)) {
        problem(fmt::format("{}: changes what is computed, and no key of recipes does that{}{}", word,
                            f->key.empty() ? "" : fmt::format("; {}: {}", f->key, f->differs),
                            f->key.empty() ? "; leave it out to plan without it" : ""));
      } else {
        if (f->kind == FlagKind::left_out)
          notes_.push_back(fmt::format("{} is left out: set {}{}", word, f->key, number_of(values)));
        given_[word] = values;
      }
    }
  }

  /// Returns whether a flag without a key is given with Megatron-LM's default.
  static bool is_standard(const MegatronFlag& f, const std::vector<std::string>& values) {
    if (f.standard.empty() || values.size() != 1) return false;
    const std::string standard(f.standard);
    char *end = nullptr, *of_standard = nullptr;
    const double value = std::strtod(values[0].c_str(), &end);
    const double wanted = std::strtod(standard.c_str(), &of_standard);
    if (*end == '\0' && *of_standard == '\0' && end != values[0].c_str()) return value == wanted;
    return values[0] == standard;
  }
  /// ": 1000" if a number is given, which the key accepts unchanged.
  static std::string number_of(const std::vector<std::string>& values) {
    const bool number = values.size() == 1 && !values[0].empty() &&
                        values[0].find_first_not_of("0123456789") == std::string::npos;
    return number ? ": " + values[0] : "";
  }

  bool has(std::string_view flag) const { return given_.find(flag) != given_.end(); }
  std::string text(std::string_view flag, const std::string& otherwise = "") const {
    const auto it = given_.find(flag);
    return it == given_.end() || it->second.empty() ? otherwise : it->second.front();
  }
  double number(std::string_view flag, double otherwise) {
    const std::string t = text(flag);
    if (t.empty()) return otherwise;
    char* end = nullptr;
    const double v = std::strtod(t.c_str(), &end);
    if (*end == '\0' && std::isfinite(v)) return v;
    problem(fmt::format("{} = {}: must be a number", flag, printable(t)));
    return otherwise;
  }
  int64_t whole(std::string_view flag, int64_t otherwise) {
    const double v = number(flag, static_cast<double>(otherwise));
    if (v == std::floor(v) && std::abs(v) < 1e15) return static_cast<int64_t>(v);
    problem(fmt::format("{} = {}: must be a whole number", flag, printable(text(flag))));
    return otherwise;
  }
  int64_t positive(std::string_view flag, int64_t otherwise) {
    const int64_t v = whole(flag, otherwise);
    if (v >= 1) return v;
    problem(fmt::format("{} = {}: must be at least 1; nearest valid value: 1", flag, v));
    return 1;
  }
  template <typename T>
  void set(const std::string& key, const T& value) {
    settings_[key] = fmt::format("{}", value);
  }

  void family() {
    const std::string positions = has("--use-rotary-position-embeddings")
                                      ? "rope"
                                      : text("--position-embedding-type", "learned_absolute");
    const std::string norm = text("--normalization", "LayerNorm");
    for (const MegatronFamily& f : megatron_families()) {
      if (positions != (f.rotary ? "rope" : "learned_absolute") ||
          norm != (f.rms_norm ? "RMSNorm" : "LayerNorm"))
        continue;
      if (has("--swiglu") != f.gated || has("--disable-bias-linear") == f.biases) continue;
      if (has("--add-qkv-bias") != f.qkv_bias || has("--qk-layernorm") != f.qk_norm) continue;
      if (latent() != f.latent || (f.latent && sigmoid() != f.sigmoid)) continue;
      if (has("--num-experts") == f.experts) return set("model.architecture", f.architecture);
    }
    problem(fmt::format(
        "--position-embedding-type {}, --normalization {}, {}, {}{}{}{}: no architecture of recipes is so; "
        "gpt2: "
        "learned_absolute, LayerNorm, biases; llama: --position-embedding-type rope --normalization RMSNorm "
        "--swiglu "
        "--disable-bias-linear{}",
        printable(positions), printable(norm), has("--swiglu") ? "--swiglu" : "no --swiglu",
        has("--disable-bias-linear") ? "--disable-bias-linear" : "no --disable-bias-linear",
        has("--add-qkv-bias") ? ", --add-qkv-bias" : "", has("--qk-layernorm") ? ", --qk-layernorm" : "",
        has("--num-experts") ? ", --num-experts" : "",
        latent() ? "; with --multi-latent-attention: those, --qk-layernorm and --num-experts" : ""));
  }

  bool latent() const { return has("--multi-latent-attention"); }
  bool sigmoid() const { return text("--moe-router-score-function", "softmax") == "sigmoid"; }

  void latents() {
    const std::string scaled = "model.rope_scaling.";
    const std::string type = text("--rope-type", latent() ? "yarn" : "rope");
    if (type != "rope" && type != "yarn")
      problem(fmt::format("--rope-type {}: must be rope or yarn", printable(type)));
    if (!latent()) {
      if (type == "yarn")
        problem(
            "--rope-type yarn: is of --multi-latent-attention here; set model.rope_scaling in the recipe");
      return;
    }
    set("model.q_lora_rank", has("--q-lora-rank") ? text("--q-lora-rank") : std::string("null"));
    const double factor = number("--rotary-scaling-factor", 1);
    if (type == "rope" || factor == 1) return;
    set(scaled + "rope_type", "yarn");
    set(scaled + "factor", factor);
    set(scaled + "original_max_position_embeddings", 4096);
    set(scaled + "mscale", number("--mscale", 1));
    set(scaled + "mscale_all_dim", number("--mscale-all-dim", 0));
  }

  void widths() {
    for (const char* flag : {"--num-layers", "--hidden-size", "--num-attention-heads",
                             "--max-position-embeddings", "--seq-length", "--micro-batch-size"})
      if (!has(flag)) problem(fmt::format("{}: must be given", flag));
    const int64_t width = positive("--hidden-size", 1);
    // Megatron-LM's rule: 8/3 of the width in multiples of 64 with a gate, else 4 times the width.
    const int64_t usual = has("--swiglu") ? static_cast<int64_t>(width * 4.0 * 2 / 3 / 64) * 64 : 4 * width;
    ffn_ = positive("--ffn-hidden-size", usual);
    set("model.intermediate_size", ffn_);
    if (has("--group-query-attention")) set("model.num_key_value_heads", positive("--num-query-groups", 1));
    vocabulary();
    const double dropout = number("--hidden-dropout", 0.1);
    set("model.resid_pdrop", dropout);
    set("model.embd_pdrop", dropout);
    set("model.tie_word_embeddings", !has("--untie-embeddings-and-output-weights"));
    if (has("--use-rope-scaling")) {
      set("model.rope_scaling.rope_type", "llama3");
      set("model.rope_scaling.factor", number("--rope-scaling-factor", 8));
    }
  }

  void vocabulary() {
    if (has("--padded-vocab-size")) return set("model.vocab_size", positive("--padded-vocab-size", 1));
    // Only GPT2BPETokenizer implies the number of its tokens.
    const bool gpt2 = text("--tokenizer-type") == "GPT2BPETokenizer";
    if (!has("--vocab-size") && !gpt2)
      return problem(
          "--vocab-size: must be given, or --padded-vocab-size: the rows of the embedding follow from the "
          "tokenizer, which is not read");
    const int64_t part =
        positive("--make-vocab-size-divisible-by", 128) * positive("--tensor-model-parallel-size", 1);
    const int64_t tokens = has("--vocab-size") ? positive("--vocab-size", 1) : 50257;
    set("model.vocab_size", (tokens + part - 1) / part * part);
  }

  void batch() {
    if (has("--global-batch-size")) {
      batch_ = positive("--global-batch-size", 1);
    } else {
      const int64_t others = positive("--tensor-model-parallel-size", 1) *
                             positive("--pipeline-model-parallel-size", 1) *
                             positive("--context-parallel-size", 1);
      if (world_ == 0 || world_ % others != 0)
        problem(
            "--global-batch-size: must be given, or --world N of ltrain plan, from which Megatron-LM's "
            "default "
            "follows: the micro-batches of all data-parallel ranks");
      else
        batch_ = positive("--micro-batch-size", 1) * (world_ / others);
    }
    set("train.global_batch_size", batch_);
    const auto ramp = given_.find("--rampup-batch-size");
    if (ramp != given_.end()) {
      set("train.batch_ramp.start", ramp->second[0]);
      set("train.batch_ramp.increment", ramp->second[1]);
      set("train.batch_ramp.samples", ramp->second[2]);
    }
    if (has("--train-samples")) set("train.train_steps", steps(whole("--train-samples", 0)));
    if (!has("--train-samples") && !has("--train-iters"))
      problem("--train-iters: must be given, or --train-samples");
    if (has("--lr-decay-samples")) set("schedule.lr_decay_steps", steps(whole("--lr-decay-samples", 0)));
    if (has("--lr-warmup-samples")) set("schedule.lr_warmup_steps", steps(whole("--lr-warmup-samples", 0)));
    if (has("--lr-warmup-fraction")) {
      const int64_t all =
          has("--train-samples") ? steps(whole("--train-samples", 0)) : whole("--train-iters", 0);
      const int64_t decay =
          has("--lr-decay-samples") ? steps(whole("--lr-decay-samples", 0)) : whole("--lr-decay-iters", all);
      set("schedule.lr_warmup_steps",
          static_cast<int64_t>(number("--lr-warmup-fraction", 0) * static_cast<double>(decay)));
    }
  }
  int64_t steps(int64_t samples) const { return (samples + batch_ - 1) / batch_; }

  void precision() {
    if (has("--fp16") && has("--bf16")) problem("--fp16 and --bf16: set only one of them");
    if (has("--fp8-format") && !has("--bf16"))
      problem("--fp8-format: needs --bf16 beside it; no key of recipes computes the rest in another type");
    if (has("--fp8-format")) set("fp8.format", text("--fp8-format"));
    set("precision", has("--fp8-format") ? "fp8" : has("--bf16") ? "bf16" : has("--fp16") ? "fp16" : "fp32");
    if (has("--first-last-layers-bf16")) {
      set("fp8.first_layers_bf16", whole("--num-layers-at-start-in-bf16", 1));
      set("fp8.last_layers_bf16", whole("--num-layers-at-end-in-bf16", 1));
    }
    if (has("--grad-reduce-in-bf16")) set("parallel.grad_reduce_dtype", "bf16");
    const std::string first = text("--exp-avg-dtype", "fp32"), second = text("--exp-avg-sq-dtype", "fp32");
    if (first != second)
      problem(fmt::format("--exp-avg-dtype {}, --exp-avg-sq-dtype {}: both moments have one dtype here",
                          first, second));
    if (first != "fp32") set("optimizer.state_dtype", first);
  }

  void layout() {
    const std::map<std::string, int> stages{
        {"no_shard", 0}, {"optim", 1}, {"optim_grads", 2}, {"optim_grads_params", 3}};
    int stage = has("--use-distributed-optimizer") ? 1 : 0;
    if (has("--use-torch-fsdp2")) {
      stage = 3;
      if (has("--torch-fsdp2-no-reshard-after-forward")) set("parallel.reshard_after_forward", "false");
    }
    if (has("--use-megatron-fsdp")) {
      const auto it = stages.find(text("--data-parallel-sharding-strategy", "optim_grads_params"));
      if (it == stages.end())
        problem(
            fmt::format("--data-parallel-sharding-strategy {}: must be one of no_shard, optim, optim_grads, "
                        "optim_grads_params",
                        printable(text("--data-parallel-sharding-strategy"))));
      else
        stage = it->second;
    }
    set("parallel.zero_stage", stage);
    const int64_t layers = positive("--num-layers", 1), ranks = positive("--pipeline-model-parallel-size", 1);
    int64_t chunks = positive("--num-virtual-stages-per-pipeline-rank", 1);
    if (has("--num-layers-per-virtual-pipeline-stage")) {
      const int64_t each = positive("--num-layers-per-virtual-pipeline-stage", 1);
      if (layers % (ranks * each) != 0)
        problem(fmt::format(
            "--num-layers-per-virtual-pipeline-stage {}: {} layers on {} pipeline ranks are no whole "
            "number of such stages",
            each, layers, ranks));
      chunks = std::max<int64_t>(1, layers / (ranks * each));
    }
    if (chunks > 1) {
      set("parallel.schedule", "interleaved");
      set("parallel.virtual_pipeline", chunks);
    }
    if (has("--pipeline-model-parallel-layout")) stage_layers(text("--pipeline-model-parallel-layout"));
    const auto inner = given_.find("--hierarchical-context-parallel-sizes");
    if (inner != given_.end() && !inner->second.empty()) set("parallel.context_inner", inner->second.front());
    if (has("--num-experts"))
      set("parallel.expert_tensor",
          positive("--expert-tensor-parallel-size", positive("--tensor-model-parallel-size", 1)));
    if (has("--use-tp-pp-dp-mapping")) set("parallel.order", "tp-cp-pp-dp");
    if (has("--optimizer-cpu-offload")) {
      set("offload.optimizer.device", "cpu");
      set("offload.optimizer.update", "cpu");
      set("offload.optimizer.fraction", number("--optimizer-offload-fraction", 1));
    }
    if (has("--cpu-offloading")) {
      set("offload.activations.device", "cpu");
      // Megatron-LM's maximum is all layers but one, which stands for all.
      const double layers = number("--num-layers", 0), away = number("--cpu-offloading-num-layers", 0);
      if (layers > 0 && away < layers - 1) set("offload.activations.fraction", away / layers);
    }
    if (has("--deterministic-mode")) set("deterministic", "true");
  }

  /// "Et*3|tt|t*3L": stages separated by bars, each with its layers.
  void stage_layers(const std::string& layout) {
    std::vector<int64_t> layers;
    std::istringstream in(layout);
    for (std::string stage; std::getline(in, stage, '|');) {
      int64_t count = 0;
      for (size_t i = 0; i < stage.size(); ++i) {
        if (stage[i] == 'E' || stage[i] == 'L') continue;
        if (stage[i] != 't')
          return problem(
              fmt::format("--pipeline-model-parallel-layout: {} in {}: only E, t, t*N, | and L are read; "
                          "write stages out",
                          printable(stage.substr(i, 1)), printable(stage)));
        int64_t times = 1;
        if (i + 1 < stage.size() && stage[i + 1] == '*') {
          times = std::atoll(stage.c_str() + i + 2);
          for (++i; i + 1 < stage.size() && std::isdigit(static_cast<unsigned char>(stage[i + 1]));) ++i;
        }
        count += times;
      }
      layers.push_back(count);
    }
    set("parallel.pipeline_layers", fmt::format("[{}]", fmt::join(layers, ", ")));
  }

  void recompute() {
    if (has("--recompute-activations")) set("recompute.granularity", "selective");
    const bool selective = has("--recompute-activations") || text("--recompute-granularity") == "selective";
    const auto it = given_.find("--recompute-modules");
    if (it != given_.end())
      set("recompute.modules", fmt::format("[{}]", fmt::join(it->second, ", ")));
    else if (selective)
      set("recompute.modules", "[core_attn]");
  }

  void experts() {
    if (!has("--num-experts")) return;
    const int64_t width = positive("--moe-ffn-hidden-size", ffn_);
    set("model.moe.intermediate_size", width);
    const int64_t shared = whole("--moe-shared-expert-intermediate-size", 0);
    if (shared % width != 0)
      problem(fmt::format(
          "--moe-shared-expert-intermediate-size {}: must be a multiple of an expert's width, {}; "
          "nearest valid value: {}",
          shared, width, std::max<int64_t>(1, shared / width) * width));
    if (shared > 0) set("model.moe.shared_experts", shared / width);
    layers_with_experts(text("--moe-layer-freq", "1"));
    const std::string kind = text("--moe-router-load-balancing-type", "aux_loss");
    const std::string ours = word_of_recipe(*find_flag("--moe-router-load-balancing-type"), kind);
    const double coeff = number("--moe-aux-loss-coeff", 0);
    if (ours.empty())
      problem(
          fmt::format("--moe-router-load-balancing-type {}: must be one of aux_loss, seq_aux_loss, "
                      "global_aux_loss, none",
                      printable(kind)));
    set("model.moe.balance.kind", coeff == 0 ? "none" : ours);
    if (coeff != 0 && ours != "none") set("model.moe.balance.coeff", coeff);
    if (has("--moe-router-group-topk"))
      set("model.moe.router.topk_group", positive("--moe-router-group-topk", 1));
    set("model.moe.router.order", "topk_last");
    set("model.moe.router.norm_topk_prob", sigmoid() || !has("--moe-router-pre-softmax"));
    const bool bias = has("--moe-router-enable-expert-bias");
    if (bias || latent())  // the families have other defaults
      set("model.moe.router.bias_update_rate", bias ? number("--moe-router-bias-update-rate", 0.001) : 0);
    if (latent() && shared == 0) set("model.moe.shared_experts", 0);
  }

  void layers_with_experts(const std::string& pattern) {
    if (pattern == "1") return;
    std::smatch m;
    if (!std::regex_match(pattern, m, std::regex(R"(\(?\[0\]\*([0-9]{1,4})\+\[1\]\*([0-9]{1,4})\)?)")))
      return problem(
          fmt::format("--moe-layer-freq {}: must be 1 or ([0]*A+[1]*B); of each N layers the first has "
                      "experts there, and the last here",
                      printable(pattern)));
    std::vector<int> dense;
    for (int i = 0; i < std::atoi(m[1].str().c_str()); ++i) dense.push_back(i);
    set("model.moe.dense_layers", fmt::format("[{}]", fmt::join(dense, ", ")));
  }

  /// Translates flags that match one key.
  void rows() {
    for (const MegatronFlag& f : megatron_flags()) {
      if (!has(f.flag)) continue;
      if (f.kind == FlagKind::on) set(std::string(f.key), "true");
      if (f.kind != FlagKind::value || (f.key == "model.head_dim" && latent())) continue;
      const std::string word = word_of_recipe(f, text(f.flag));
      if (!word.empty()) {
        set(std::string(f.key), word);
        continue;
      }
      problem(fmt::format("{} {}: no key of recipes does that (expected, there and here: {})", f.flag,
                          printable(text(f.flag)), f.words));
    }
  }

  /// Sets Megatron-LM's defaults for the keys that have a meaning in this recipe.
  void defaults() {
    const Recipe draft = parse_recipe("", "--from-megatron", overrides());
    for (const MegatronFlag& f : megatron_flags()) {
      const std::string key(f.key);
      if (f.kind != FlagKind::value || f.standard.empty() || settings_.count(key)) continue;
      const recipe::Key* row = recipe::find_key(key);
      LT_CHECK(row, "expected a recipe key for {}, got none", f.flag);
      if (row->applies && !row->applies(draft)) continue;
      const std::string ours =
          f.words.empty() ? std::string(f.standard) : word_of_recipe(f, std::string(f.standard));
      if (!ours.empty()) set(key, ours);
    }
    parse_recipe("", "--from-megatron", overrides());
  }

  std::vector<std::string> overrides() const {
    std::vector<std::string> out;
    for (const auto& [key, value] : settings_) out.push_back(key + "=" + value);
    return out;
  }

  /// YAML in the order of the schema, with one map per section.
  std::string yaml() const {
    std::string out, section;
    for (const recipe::Key& key : recipe::schema()) {
      const auto it = settings_.find(key.path);
      if (it == settings_.end()) continue;
      open_section(key.section(), section, out);
      const size_t depth = std::count(key.path.begin(), key.path.end(), '.');
      out += fmt::format("{}{}: {}\n", std::string(2 * depth, ' '), key.leaf(), it->second);
    }
    return out;
  }
  static void open_section(const std::string& wanted, std::string& section, std::string& out) {
    if (wanted == section) return;
    std::istringstream in(wanted);
    std::string path;
    for (std::string part; std::getline(in, part, '.');) {
      const size_t depth = std::count(path.begin(), path.end(), '.') + (path.empty() ? 0 : 1);
      path += (path.empty() ? "" : ".") + part;
      if (section.rfind(path + ".", 0) != 0 && section != path)
        out += fmt::format("{}{}:\n", std::string(2 * depth, ' '), part);
    }
    section = wanted;
  }

  int world_;
  Given given_;
  std::map<std::string, std::string> settings_;
  std::vector<std::string> problems_, notes_;
  int64_t ffn_ = 0, batch_ = 1;
};

}  // namespace

Imported from_megatron(const std::string& line, int world) { return Reader(line, world).result(); }

}  // namespace ltrain::exports
