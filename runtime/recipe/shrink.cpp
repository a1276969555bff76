#include "runtime/recipe/shrink.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "kernels/matmul/quantize.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/raw_values.h"
#include "runtime/recipe/rules/rules.h"
#include "runtime/recipe/schema/schema.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain {

namespace {

constexpr int64_t kSteps = 3, kHead = 16, kSequence = 128, kWindow = 32;

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

class Shrink {
 public:
  Shrink(const Recipe& r, int64_t most) : r_(r), m_(r.model), most_(most) {}

  std::vector<std::string> run() {
    if (given("model.from")) write_out_model();
    axes();
    layers();
    widths();
    experts();
    batch();
    lengths();
    machine();
    return out_;
  }

 private:
  bool given(const std::string& key) const { return r_.origins && r_.origins->has(key); }
  template <class T>
  void set(const std::string& key, const T& value) {
    out_.push_back(fmt::format("{}={}", key, value));
  }
  /// Back to the default. Values of a folder that model.from names went with it.
  void drop(const std::string& key) {
    if (written_out_.contains(key) || (given(key) && !of_folder(key))) out_.push_back("~" + key);
  }
  bool of_folder(const std::string& key) const {
    const auto it = r_.origins->values->values.find(key);
    return it != r_.origins->values->values.end() && key.compare(0, 6, "model.") != 0 &&
           it->second.written_as.find("model.from") != std::string::npos;
  }
  void drop(std::initializer_list<const char*> keys) {
    for (const char* key : keys) drop(key);
  }
  void set_list(const std::string& key, const std::vector<std::string>& items) {
    set(key, fmt::format("[{}]", fmt::join(items, ", ")));
  }

  /// Replaces model.from by the settings that it gives, because a file's value comes back after `~key`.
  void write_out_model() {
    out_.emplace_back("~model.from");
    drop("model.from_ignore");
    for (const auto& [key, value] : model_settings(m_)) {
      const std::string path = "model." + key;
      if (path == "model.head_dim" && m_.traits().latent_attention) continue;
      set(path, value);
      written_out_.insert(path);
    }
  }

  /// Two ranks for each axis that has more than one, then fewer axes until all fit.
  void axes() {
    const Parallel& p = r_.parallel;
    const auto two = [](int64_t n) { return std::min<int64_t>(n, 2); };
    const bool grid = p.tensor > 1 && p.tensor_mode != TensorModeChoice::one_d;
    tensor_ = !grid ? two(p.tensor) : p.tensor_mode == TensorModeChoice::two_d ? 4 : 8;
    pipeline_ = two(p.pipeline), context_ = two(p.context);
    data_ = p.data < 0 ? 2 : two(p.data);
    const auto ranks = [&] { return tensor_ * pipeline_ * context_ * data_; };
    const bool needs_data = p.zero_stage > 0 || p.expert > 1;
    std::vector<int64_t*> order{&context_, &tensor_, &pipeline_};
    order.insert(needs_data ? order.end() : order.begin(), &data_);
    for (int64_t* axis : order)
      if (ranks() > most_) *axis = 1;
    set("parallel.data", data_);
    set("parallel.tensor", tensor_);
    set("parallel.pipeline", pipeline_);
    set("parallel.context", context_);
    if (grid && tensor_ == 1) drop({"parallel.tensor_mode", "parallel.tensor_depth"});
    if (p.tensor_mode == TensorModeChoice::two_and_half_d && tensor_ > 1) set("parallel.tensor_depth", 2);
    grid_ = grid && tensor_ > 1;
    if (tensor_ == 1) drop({"parallel.sequence_parallel", "parallel.async_tensor_parallel"});
    expert_ = p.expert == 1 ? 1 : std::min<int64_t>(2, data_ * context_ * (experts_apart() ? tensor_ : 1));
    if (m_.moe.num_experts > 0) set("parallel.expert", expert_);
    if (tensor_ < p.expert_tensor) drop("parallel.expert_tensor");
    if (expert_ == 1) drop({"parallel.expert_dispatch", "parallel.expert_chunks", "parallel.shadow_experts"});
    if (expert_ > 1 && p.expert_chunks > 2) set("parallel.expert_chunks", 2);
    // Two levels need more ranks than an axis keeps.
    drop({"parallel.hierarchical_all_to_all", "parallel.shard_group", "parallel.hierarchical_reduction",
          "parallel.pipeline_layers", "parallel.schedule_file"});
    if (p.zero_layers > 1) set("parallel.zero_layers", 1);
    stages();
    context_comm();
  }

  bool experts_apart() const { return r_.parallel.expert_tensor < r_.parallel.tensor && tensor_ > 1; }

  void stages() {
    const Parallel& p = r_.parallel;
    if (pipeline_ == 1) {
      drop({"parallel.schedule", "parallel.virtual_pipeline"});
      chunks_ = 1;
    } else {
      chunks_ = p.chooses_schedule() ? 2 : std::min<int64_t>(p.virtual_pipeline, 2);
      if (given("parallel.virtual_pipeline") && !p.schedule_file)
        set("parallel.virtual_pipeline", chunks_);
      else if (p.schedule_file)
        drop("parallel.virtual_pipeline"), chunks_ = 1;
    }
  }

  void context_comm() {
    const Parallel& p = r_.parallel;
    drop("parallel.context_inner");
    if (context_ == 1)
      drop("parallel.context_comm");
    else if (p.context_comm == ContextComm::a2a_p2p)
      set("parallel.context_comm", to_string(ContextComm::p2p));
  }

  /// The fewest layers with every kind of the model, in whole stages.
  void layers() {
    const int64_t all = m_.num_hidden_layers;
    int64_t n = std::max<int64_t>(2, m_.moe.num_experts > 0 ? m_.moe.layer_step : 1);
    const auto kind = [&](int64_t i) {
      return fmt::format("{} {} {}", m_.window(i), m_.rotates(i), m_.has_experts(i));
    };
    std::set<std::string> kinds, seen;
    for (int64_t i = 0; i < all; ++i) kinds.insert(kind(i));
    // Dense first layers become one of them.
    const bool dense_first = m_.moe.num_experts > 0 && !m_.moe.dense_layers.empty();
    for (int64_t i = 0; i < all && seen.size() < kinds.size() && !dense_first; ++i)
      if (seen.insert(kind(i)).second) n = std::max(n, i + 1);
    first_bf16_ = std::min<int64_t>(r_.fp8.first_layers, 1);
    last_bf16_ = std::min<int64_t>(r_.fp8.last_layers, 1);
    n = round_up(std::max(n, first_bf16_ + last_bf16_ + 1), pipeline_ * chunks_);
    layers_ = std::min(n, all);
    set("model.num_hidden_layers", layers_);
    if (dense_first) set("model.moe.dense_layers", "[0]");
    first_of("model.layer_types", m_.layer_types);
    first_of("model.no_rope_layers", m_.no_rope_layers);
    if (m_.num_nextn_predict_layers > 1) set("model.num_nextn_predict_layers", 1);
    if (computes_in(r_, Precision::fp8)) {
      set("fp8.first_layers_bf16", first_bf16_);
      set("fp8.last_layers_bf16", last_bf16_);
    }
  }

  /// Shortens a list with an entry for each layer.
  template <class T>
  void first_of(const std::string& key, const std::vector<T>& list) {
    if (!given(key) && !written_out_.contains(key)) return;
    std::vector<std::string> items;
    for (int64_t i = 0; i < layers_ && i < static_cast<int64_t>(list.size()); ++i)
      items.push_back(fmt::format("{}", list[static_cast<size_t>(i)]));
    set_list(key, items);
  }

  /// Heads that keep grouped queries, and widths in the proportions of the model.
  void widths() {
    const bool blocks =
        computes_in(r_, Precision::fp8) && r_.fp8.recipe == Fp8Recipe::blockwise && tensor_ > 1;
    const int64_t head = blocks ? kFp8Block : kHead;
    grain_ = blocks ? kFp8Block * tensor_ : 32;
    const int64_t heads = m_.num_attention_heads, kv = m_.num_key_value_heads;
    const int64_t side = grid_ ? 2 : tensor_;
    const bool exchanges = context_ > 1 && r_.parallel.context_comm == ContextComm::a2a;
    const int64_t unit = side * (exchanges ? context_ : 1);
    const bool grouped = kv < heads;
    const int64_t few_kv = grouped ? (kv == 1 && unit <= 2 && !grid_ ? 1 : std::max<int64_t>(2, unit))
                                   : std::max<int64_t>(4, unit);
    const int64_t few = grouped ? std::max(unit, few_kv * std::min<int64_t>(heads / kv, 2)) : few_kv;
    set("model.num_attention_heads", few);
    set("model.num_key_value_heads", few_kv);
    if (m_.traits().latent_attention) {
      latent(few);
    } else {
      const double share = static_cast<double>(m_.hidden_size) / static_cast<double>(heads * m_.head_dim);
      hidden_ = round_up(static_cast<int64_t>(static_cast<double>(few * head) * share), 32);
      if (m_.family->free_head_dim)
        set("model.head_dim", head);
      else
        drop("model.head_dim"), hidden_ = few * head;
      rotation(head);
    }
    set("model.hidden_size", hidden_);
    set("model.intermediate_size", scaled(m_.intermediate_size));
    if (m_.sliding_window) set("model.sliding_window", std::min(*m_.sliding_window, kWindow));
  }

  /// A width in the proportion that it has to the model's.
  int64_t scaled(int64_t width) const {
    const double share = static_cast<double>(width) / static_cast<double>(m_.hidden_size);
    return round_up(std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(hidden_))), grain_);
  }

  void latent(int64_t heads) {
    hidden_ = heads * kHead;
    drop("model.head_dim");
    if (m_.latent.q_lora_rank) set("model.q_lora_rank", 48);
    set("model.kv_lora_rank", 32);
    set("model.qk_nope_head_dim", 16);
    set("model.qk_rope_head_dim", 8);
    set("model.v_head_dim", 16);
  }

  /// Settings of rotation by channel, and of the scale of scores.
  void rotation(int64_t head) {
    if (m_.query_pre_attn_scalar > 0 && m_.family->name == family_of("gemma2").name)
      set("model.query_pre_attn_scalar", head);
    else
      drop("model.query_pre_attn_scalar");
    const auto shorten = [&](const std::string& key, const std::vector<double>& list) {
      if (list.empty()) return;
      std::vector<std::string> items;
      const auto pairs = static_cast<size_t>(static_cast<double>(head) * m_.partial_rotary_factor) / 2;
      for (size_t i = 0; i < std::min(pairs, list.size()); ++i)
        items.push_back(recipe::write_number(list[i]));
      set_list(key, items);
    };
    shorten("model.rope_scaling.short_factor", m_.rope_scaling.short_factor);
    shorten("model.rope_scaling.long_factor", m_.rope_scaling.long_factor);
  }

  void experts() {
    const MoeConfig& moe = m_.moe;
    if (moe.num_experts == 0) return;
    const bool grouped = moe.n_group > 1;
    const int64_t n = std::min<int64_t>(moe.num_experts, grouped ? 8 : 4);
    set("model.moe.num_experts", n);
    if (moe.selection == Selection::top_k || moe.selection == Selection::top_p)
      set("model.moe.top_k", std::min<int64_t>(moe.top_k, 2));
    if (moe.zero_experts > n) set("model.moe.zero_experts", n);
    if (moe.experts_per_token)  // the same part of a token's choices
      set("model.moe.router.experts_per_token", *moe.experts_per_token *
                                                    static_cast<double>(std::min<int64_t>(moe.top_k, 2)) /
                                                    static_cast<double>(moe.top_k));
    set("model.moe.intermediate_size", scaled(moe.intermediate_size));
    if (moe.shared_experts > 1) set("model.moe.shared_experts", 1);
    if (!grouped) return;
    set("model.moe.router.n_group", 2);
    set("model.moe.router.topk_group", moe.topk_group < moe.n_group ? 1 : 2);
  }

  void batch() {
    const Train& t = r_.train;
    const bool cube = r_.parallel.tensor_mode != TensorModeChoice::two_d;
    const int64_t micro = grid_ ? (cube ? 4 : 2) : std::min<int64_t>(t.micro_batch_size, 2);
    const bool one = r_.parallel.data > 0 && t.global_batch_size == t.micro_batch_size * r_.parallel.data;
    const int64_t micros = pipeline_ > 1 ? 2 * pipeline_ : one ? 1 : 2;
    set("train.micro_batch_size", micro);
    set("train.global_batch_size", micro * micros * data_);
    drop({"train.batch_ramp.start", "train.batch_ramp.increment", "train.batch_ramp.samples"});
    const bool blocks =
        computes_in(r_, Precision::fp8) && r_.fp8.recipe == Fp8Recipe::blockwise && context_ > 1;
    const int64_t length = blocks ? 2 * context_ * kFp8Block : kSequence;
    set("data.seq_length", std::min(r_.data.seq_length, length));
    if (m_.traits().positions == PositionEmbedding::learned)
      set("model.max_position_embeddings", std::min(m_.max_position_embeddings, length));
    const int64_t chunk = output_in_fp8() && r_.fp8.recipe == Fp8Recipe::blockwise ? kFp8Block : 64;
    if (t.logits_chunk_size > chunk) set("train.logits_chunk_size", chunk);
  }

  /// Numbers of steps.
  void lengths() {
    set("train.train_steps", kSteps);
    set("train.log_interval", 1);
    drop({"train.train_tokens", "train.stop_step", "train.eval_interval", "data.eval",
          "train.exit_duration_in_mins", "train.router_record", "train.router_record_interval",
          "train.router_replay", "train.routing_probe_interval", "train.routing_probe_samples",
          "schedule.lr_decay_steps", "schedule.lr_num_cycles"});
    if (m_.moe.freeze_step > 1) set("model.moe.router.freeze_step", 2);
    if (r_.train.router_warmup_steps > 1) set("train.router_warmup_steps", 1);
    set("schedule.lr_warmup_steps", std::min<int64_t>(r_.schedule.lr_warmup_steps, 1));
    if (r_.schedule.lr_decay_style == LrDecayStyle::wsd) set("schedule.lr_wsd_decay_steps", 1);
    if (r_.optimizer.uses(UpdateRule::onebit_adam) || r_.optimizer.uses(UpdateRule::onebit_lamb))
      set("optimizer.freeze_step", 2);
    if (r_.optimizer.uses(UpdateRule::sophia)) set("optimizer.hessian_interval", 2);
    if (!r_.sparsity.match.empty()) set("sparsity.at_step", 1);
    if (r_.sparsity.moves()) set("sparsity.mask_interval", 1);
    drop({"replicas.count", "replicas.min", "replicas.timeout_seconds"});
    if (r_.diloco.on()) {
      set("diloco.sites", std::min(r_.diloco.sites, data_));
      set("diloco.inner_steps", 1);
      drop({"diloco.fragments", "diloco.delay", "diloco.shares"});
    }
    if (r_.phases.size() > 1) {
      std::vector<std::string> phases;
      for (size_t i = 0; i < r_.phases.size(); ++i)
        phases.push_back(i + 1 < r_.phases.size()
                             ? fmt::format("{{until_step: {}, precision: {}}}", i + 1, r_.phases[i].precision)
                             : fmt::format("{{precision: {}}}", r_.phases[i].precision));
      set_list("precision", phases);
    }
    if (r_.recompute.granularity == RecomputeGranularity::full && r_.recompute.num_layers.value_or(0) > 1)
      set("recompute.num_layers", 1);
    drop("recompute.budget");
  }

  bool output_in_fp8() const { return computes_in(r_, Precision::fp8) && r_.fp8.output_layer; }

  /// Data, folders, and settings of the machine.
  void machine() {
    const std::string folder = shrunk_folder(r_);
    set("output_dir", folder);
    set("data.train", fmt::format("[{{path: \"{}/data.jsonl\"}}]", folder));
    set("data.cache", folder + "/data");
    drop({"data.tokenizer.path", "data.tokenizer.eod", "data.object_cache_gb", "data.chat_template"});
    set("data.tokenizer.kind", data::byte_tokenizer_kind().name);
    const int64_t ids = data::byte_tokenizer_kind().vocab_size;
    set("model.vocab_size", output_in_fp8() ? round_up(ids, kFp8Block * tensor_) : ids);
    if (r_.task != Task::pretrain) set("data.chat_template", folder + "/chat.jinja");
    set("device", "cpu");
    drop({"cluster",
          "cuda_graphs",
          "attention_backend",
          "offload.optimizer.device",
          "offload.optimizer.fraction",
          "offload.optimizer.path",
          "offload.optimizer.skip_untouched_experts",
          "offload.params.device",
          "offload.params.fraction",
          "offload.params.path",
          "offload.activations.device",
          "offload.activations.fraction",
          "offload.activations.path",
          "launch.ranks_per_node",
          "launch.threads_per_rank",
          "launch.max_restarts",
          "launch.restart_wait_seconds",
          "launch.restart_wait_cap_seconds",
          "launch.min_nodes",
          "launch.interface",
          "launch.rank_order",
          "telemetry.prometheus",
          "telemetry.prometheus_port",
          "telemetry.on_end",
          "telemetry.on_end_seconds",
          "telemetry.on_save",
          "checkpoint.remote",
          "telemetry.on_save_seconds",
          "profile.step_start",
          "profile.step_end",
          "profile.ranks",
          "debug.shared_gpu",
          "lora.adapter",
          "checkpoint.load.parts",
          "checkpoint.upcycle",
          "checkpoint.load.path",
          "distillation.teacher",
          "distillation.logits",
          "distillation.top_k",
          "distillation.kd_ratio",
          "distillation.temperature",
          "preference.reference_model",
          "checkpoint.keep_best",
          "checkpoint.keep_every"});
    set("checkpoint.resume", "never");
    set("checkpoint.save_interval", 0);
    keep_offloaded_tensors();
  }

  /// Tensors that an offload took stay in memory.
  void keep_offloaded_tensors() {
    bool any = false;
    std::vector<std::string> tensors;
    for (const auto& [tensor, policy] : r_.recompute.tensors) {
      any = any || policy == SavePolicy::offload;
      tensors.push_back(fmt::format("{}: {}", block_tensor_name(tensor),
                                    policy == SavePolicy::offload ? SavePolicy::keep : policy));
    }
    if (any) set("recompute.tensors", fmt::format("{{{}}}", fmt::join(tensors, ", ")));
  }

  const Recipe& r_;
  const ModelConfig& m_;
  int64_t most_;
  int64_t tensor_ = 1, pipeline_ = 1, chunks_ = 1, context_ = 1, data_ = 1, expert_ = 1;
  bool grid_ = false;
  int64_t layers_ = 1, hidden_ = 1, grain_ = 1, first_bf16_ = 0, last_bf16_ = 0;
  std::set<std::string> written_out_;
  std::vector<std::string> out_;
};

}  // namespace

std::vector<std::string> shrink_settings(const Recipe& recipe, int64_t most_ranks) {
  LT_CHECK(most_ranks >= 1, "expected at least 1 rank, got {}", most_ranks);
  return Shrink(recipe, most_ranks).run();
}

std::string shrunk_folder(const Recipe& recipe) { return recipe.output_dir + "-shrunk"; }

// The byte tokenizer has one special token, which ends a turn here.
std::string shrunk_chat_template() {
  return "{% for m in messages %}{% if m.role == 'assistant' %}A: {% generation %}"
         "{{ m.content + '<|endoftext|>' }}{% endgeneration %}{% else %}Q: {{ m.content }}{% endif %}\n"
         "{% endfor %}";
}

std::string shrunk_data(Task task) {
  std::string out;
  for (int i = 0; i < 400; ++i) {
    const std::string asked = fmt::format("What is {} times {}?", i, i + 3);
    const std::string right = fmt::format("{} times {} is {}.", i, i + 3, i * (i + 3));
    const std::string wrong = fmt::format("I would say {}.", i * 7 % 100);
    switch (task) {
      case Task::pretrain:
        out +=
            fmt::format("{{\"text\": \"{} {} And this is line {} of a made-up text.\"}}\n", asked, right, i);
        break;
      case Task::sft:
        out += fmt::format(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}, "
            "{{\"role\": \"assistant\", \"content\": \"{}\"}}]}}\n",
            asked, right);
        break;
      case Task::dpo:
      case Task::reward:
        out += fmt::format("{{\"prompt\": \"{}\", \"chosen\": \" {}\", \"rejected\": \" {}\"}}\n", asked,
                           right, wrong);
        break;
      case Task::kto:
        out += fmt::format("{{\"prompt\": \"{}\", \"completion\": \" {}\", \"label\": {}}}\n", asked,
                           i % 2 ? wrong : right, i % 2 ? "false" : "true");
        break;
    }
  }
  return out;
}

std::vector<std::string> changed_keys(const Recipe& before, const Recipe& after) {
  std::vector<std::string> lines;
  for (const recipe::Key& key : recipe::schema()) {
    const bool was = key.in_dump(before), is = key.in_dump(after);
    const std::string old = was ? key.write(key, before, false) : "no meaning";
    const std::string now = is ? key.write(key, after, false) : "no meaning";
    if (old != now) lines.push_back(fmt::format("{}: {} -> {}", key.path, old, now));
  }
  return lines;
}

}  // namespace ltrain
