#include "runtime/recipe/rules/rules.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/recipe/nearest_value.h"
#include "runtime/recipe/rules/dispatch_rules.h"
#include "runtime/recipe/rules/moe_rules.h"
#include "runtime/recipe/rules/rules_parts.h"
#include "runtime/recipe/schema/schema.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::recipe {

namespace {

class Rules {
 public:
  Rules(const Recipe& r, const RecipeOrigins& o, Diagnostics& p) : r_(r), o_(o), p_(p) {}

  bool given(std::string_view path) const { return o_.has(path); }

  /// Reports a violation at `path`. The location is that of `path`, or of one of `others` that was given on
  /// the command line.
  void broken(const std::string& path, const std::string& text, const std::vector<std::string>& others = {}) {
    const Key* key = find_key(path);
    LT_CHECK(key, "expected a schema row for the key {}, got none", path);
    Place place = o_.place(path);
    for (const std::string& other : others)
      if (const Place at = o_.place(other);
          given(other) && (at.source != o_.source || (place.line == 0 && place.source == o_.source)))
        place = at;  // the command line caused the violation
    p_.add({place,
            fmt::format("{} = {}{}: ", path, key->write(*key, r_, false), given(path) ? "" : " (default)"),
            text, path, false});
  }

  /// `broken` as a callback, for rules in other files.
  BrokenRule report() {
    return [this](const std::string& path, const std::string& text, const std::vector<std::string>& others) {
      broken(path, text, others);
    };
  }

  void model() {
    const ModelConfig& m = r_.model;
    const std::string heads = "model.num_attention_heads", hidden = "model.hidden_size";
    if (given("model.from_ignore") && !given("model.from"))
      broken("model.from_ignore", "has a meaning only with model.from; remove the key");
    if (r_.checkpoint.load_path && r_.checkpoint.upcycle)
      broken("checkpoint.upcycle",
             "a run begins with one set of weights; remove the key, or checkpoint.load.path",
             {"checkpoint.load.path"});
    if (m.traits().latent_attention) {
      latent_attention();
    } else if (!given("model.head_dim")) {
      if (m.hidden_size % m.num_attention_heads != 0)
        broken(heads,
               fmt::format("must divide {} ({}), or model.head_dim must be given{}", hidden, m.hidden_size,
                           nearest(m.num_attention_heads, 1, m.hidden_size,
                                   [&](int64_t n) { return m.hidden_size % n == 0; })),
               {hidden});
    } else if (!m.family->free_head_dim && m.head_dim * m.num_attention_heads != m.hidden_size) {
      broken("model.head_dim", fmt::format("{} needs {} / {} = {} / {}; remove the key", m.family->name,
                                           hidden, heads, m.hidden_size, m.num_attention_heads));
    }
    if (!m.family->grouped_queries && m.num_key_value_heads != m.num_attention_heads)
      broken(
          "model.num_key_value_heads",
          fmt::format("{} has one for each query head: {}; remove the key, or use model.architecture: llama",
                      m.family->name, m.num_attention_heads));
    else if (m.num_attention_heads % m.num_key_value_heads != 0)
      broken("model.num_key_value_heads",
             fmt::format("must divide {} ({}){}", heads, m.num_attention_heads,
                         nearest(m.num_key_value_heads, 1, m.num_attention_heads,
                                 [&](int64_t n) { return m.num_attention_heads % n == 0; })),
             {heads});
    const bool latent = m.traits().latent_attention;
    const bool head_is_whole =
        !latent && (given("model.head_dim") || m.hidden_size % m.num_attention_heads == 0);
    const bool rotary = m.traits().positions == PositionEmbedding::rotary;
    if (rotary && head_is_whole && m.head_dim % 2 != 0)
      broken("model.head_dim",
             fmt::format("must be even, since rotary embeddings turn pairs; nearest valid value: {}{}",
                         m.head_dim > 1 ? fmt::format("{} or ", m.head_dim - 1) : "", m.head_dim + 1),
             {heads, hidden});
    if (rotary && head_is_whole) rotary_channels();
    if (rotary) rope_scaling();
    layers();
    if (r_.data.seq_length > m.max_position_embeddings)
      broken("data.seq_length",
             fmt::format("must be at most model.max_position_embeddings; nearest valid value: {}",
                         m.max_position_embeddings),
             {"model.max_position_embeddings"});
    const int64_t ids = r_.data.tokenizer.kind->vocab_size;
    if (ids == 0 && !given("model.vocab_size"))
      broken("model.vocab_size",
             "must be given with data.tokenizer.kind: huggingface: at least as many as its tokens",
             {"data.tokenizer.kind"});
    else if (m.vocab_size < ids)
      broken("model.vocab_size",
             fmt::format("the {} tokenizer has {} ids; nearest valid value: {}", r_.data.tokenizer.kind->name,
                         ids, ids),
             {"data.tokenizer.kind"});
  }

  void latent_attention() {
    const ModelConfig& m = r_.model;
    const int64_t nope = m.latent.qk_nope_head_dim, turn = m.latent.qk_rope_head_dim, width = nope + turn;
    const std::string dims = "model.qk_nope_head_dim + model.qk_rope_head_dim";
    if (turn % 2 != 0)
      broken("model.qk_rope_head_dim",
             fmt::format("must be even, since rotary embeddings turn pairs; nearest valid value: {} or {}",
                         turn - 1, turn + 1));
    if (given("model.head_dim") && m.head_dim != width)
      broken("model.head_dim", fmt::format("is {} of {}: {}; remove the key", dims, m.family->name, width),
             {"model.qk_nope_head_dim", "model.qk_rope_head_dim"});
    if (m.latent.v_head_dim > width)
      broken("model.v_head_dim",
             fmt::format("this build computes values of at most {} channels; nearest valid value: {}", dims,
                         width),
             {"model.qk_nope_head_dim", "model.qk_rope_head_dim"});
  }

  void rotary_channels() {
    const ModelConfig& m = r_.model;
    const int64_t turn = m.rotary_dim();
    if (m.head_dim % 2 == 0 && (turn < 2 || turn % 2 != 0 || turn > m.head_dim)) {
      const int64_t near = std::clamp<int64_t>(turn - turn % 2, 2, m.head_dim);
      broken("model.partial_rotary_factor",
             fmt::format(
                 "turns {} of the {} channels of a head, and must turn an even number of them; nearest "
                 "valid value: {}",
                 turn, m.head_dim, write_number(static_cast<double>(near) / static_cast<double>(m.head_dim))),
             {"model.head_dim"});
    }
    const RopeScaling& s = m.rope_scaling;
    if (s.type != RopeType::longrope) return;
    for (const auto& [key, list] : {std::pair("model.rope_scaling.short_factor", &s.short_factor),
                                    std::pair("model.rope_scaling.long_factor", &s.long_factor)})
      if (static_cast<int64_t>(list->size()) != turn / 2)
        p_.add(
            o_.place(key),
            fmt::format("{}: rope_type longrope needs a number for each pair of channels that rotates, {}, "
                        "and it has {}",
                        key, turn / 2, list->size()));
  }

  /// Checks keys with one entry per layer.
  void layers() {
    const ModelConfig& m = r_.model;
    const std::string count = "model.num_hidden_layers";
    const auto one_each = [&](const std::string& key, size_t n) {
      if (n == 0 || n == static_cast<size_t>(m.num_hidden_layers)) return true;
      broken(key,
             fmt::format("must have an entry for each layer: {} ({}), and has {}", count, m.num_hidden_layers,
                         n),
             {count});
      return false;
    };
    if (one_each("model.no_rope_layers", m.no_rope_layers.size()))
      for (const int64_t rotates : m.no_rope_layers)
        if (rotates > 1) {
          broken("model.no_rope_layers", "has 1 for a layer that rotates and 0 for one that does not");
          break;
        }
    if (!one_each("model.layer_types", m.layer_types.size())) return;
    const bool slides = std::find(m.layer_types.begin(), m.layer_types.end(), LayerType::sliding_attention) !=
                        m.layer_types.end();
    if (slides && !m.sliding_window)
      broken("model.layer_types", "sliding_attention needs model.sliding_window, and it is null",
             {"model.sliding_window"});
    if (!slides && !m.layer_types.empty() && m.sliding_window)
      broken("model.sliding_window",
             "no layer of model.layer_types is sliding_attention; nearest valid value: null",
             {"model.layer_types"});
  }

  void rope_scaling() {
    const RopeScaling& s = r_.model.rope_scaling;
    const std::string type = "model.rope_scaling.rope_type", factor = "model.rope_scaling.factor";
    const std::vector<RopeType>& types = r_.model.family->rope_types;
    if (!types.empty() && std::find(types.begin(), types.end(), s.type) == types.end()) {
      std::string valid;
      for (const RopeType t : types) valid += (valid.empty() ? "" : ", ") + std::string(to_string(t));
      broken(type,
             fmt::format("transformers' {} has none of this type; valid: {}", r_.model.family->name, valid));
    }
    if (s.type == RopeType::longrope && s.original_max_position_embeddings < 2)
      broken("model.rope_scaling.original_max_position_embeddings",
             "must be at least 2, since rope_type longrope divides by its logarithm");
    if (s.type != RopeType::none && s.type != RopeType::longrope && !given(factor))
      p_.add(o_.place(type),
             fmt::format("{} = {}: needs model.rope_scaling.factor{}", type, s.type,
                         s.type == RopeType::llama3 ? "; Llama 3.1 has 8.0, 3.2 has 32.0" : ""));
    if (s.type == RopeType::none && s.factor != 1.0)
      broken(factor,
             "needs model.rope_scaling.rope_type: linear, llama3, yarn or longrope, and it is default");
    if (s.type == RopeType::yarn && s.beta_slow >= s.beta_fast)
      broken("model.rope_scaling.beta_slow",
             fmt::format("must be below model.rope_scaling.beta_fast ({})", write_number(s.beta_fast)),
             {"model.rope_scaling.beta_fast"});
    if (s.type == RopeType::yarn && r_.model.rope_theta <= 1)
      broken("model.rope_theta", "must be above 1, since rope_type yarn counts turns by it");
    if (s.low_freq_factor >= s.high_freq_factor)
      broken("model.rope_scaling.low_freq_factor",
             fmt::format("must be below model.rope_scaling.high_freq_factor ({})",
                         write_number(s.high_freq_factor)),
             {"model.rope_scaling.high_freq_factor"});
  }

  void training() {
    const Train& t = r_.train;
    if (t.train_tokens && given("train.train_steps")) {
      const int64_t steps = steps_for_tokens(r_, *t.train_tokens);
      if (steps != t.train_steps)
        broken("train.train_tokens",
               fmt::format(
                   "makes {} steps of {}{} tokens, and train.train_steps says {}; set only one of the two",
                   steps, t.batch_ramp.start > 0 ? "up to " : "", tokens_per_step(r_), t.train_steps),
               {"train.train_steps"});
    }
    if (t.stop_step && *t.stop_step > t.train_steps)
      broken("train.stop_step",
             fmt::format("is after the last of train.train_steps = {}; nearest valid value: {}",
                         t.train_steps, t.train_steps),
             {"train.train_steps"});
    if (given("train.eval_interval") && t.eval_interval > 0 && r_.data.eval.empty())
      broken("train.eval_interval", "there is nothing to evaluate on; give data.eval, or remove the key");
    const LrSchedule& s = r_.schedule;
    if (s.lr_warmup_steps > s.lr_decay_steps)
      broken("schedule.lr_warmup_steps",
             fmt::format(
                 "must be at most schedule.lr_decay_steps; nearest valid value: {}{}", s.lr_decay_steps,
                 given("train.train_steps") && !given("schedule.lr_decay_steps")
                     ? fmt::format("; train.stop_step: {} ends a run early and leaves the schedule as it is",
                                   t.train_steps)
                     : ""),
             {"schedule.lr_decay_steps", "train.train_steps"});
    else if (s.lr_decay_style == LrDecayStyle::wsd &&
             s.lr_wsd_decay_steps > s.lr_decay_steps - s.lr_warmup_steps)
      broken(
          "schedule.lr_wsd_decay_steps",
          fmt::format(
              "must be at most schedule.lr_decay_steps - schedule.lr_warmup_steps; nearest valid value: {}",
              s.lr_decay_steps - s.lr_warmup_steps),
          {"schedule.lr_decay_steps"});
    if (r_.optimizer.min_lr > r_.optimizer.lr)
      broken(
          "optimizer.min_lr",
          fmt::format("must be at most optimizer.lr; nearest valid value: {}", write_number(r_.optimizer.lr)),
          {"optimizer.lr"});
  }

  void run() {
    for (char c : r_.name)
      if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
            c == '_' || c == '-')) {
        broken("name", "may have letters, digits, `.`, `_` and `-` only");
        break;
      }
    const Tokenizer& tokenizer = r_.data.tokenizer;
    if (tokenizer.kind->takes_file() && !tokenizer.path)
      broken("data.tokenizer.kind", "needs data.tokenizer.path: a " + tokenizer.kind->file);
    if (r_.checkpoint.keep_latest == 1)
      broken("checkpoint.keep_latest",
             "must be at least 2, since the newest may turn out bad; nearest valid value: 2; 0 keeps all");
    if (r_.parallel.data == 0)
      broken(
          "parallel.data",
          "must be at least 1, or -1 for the ranks that the other axes leave; nearest valid value: -1 or 1");
  }

  /// Checks the tensor axis, which shards heads, hidden units of the feed-forward, and token rows with
  /// sequence_parallel.
  void tensor_cuts() {
    const int64_t ranks = r_.parallel.tensor;
    if (ranks <= 1) return;
    if (r_.parallel.tensor_mode != TensorModeChoice::one_d) return tensor_grid_rules(r_, report());
    const ModelConfig& m = r_.model;
    const int64_t context = r_.parallel.context, heads = m.num_attention_heads, kv = m.num_key_value_heads;
    const auto kv_good = [&](int64_t r) { return kv % r == 0 || r % kv == 0; };
    struct Cut {
      std::string what;
      int64_t n;
      std::vector<std::string> keys;
    };
    std::vector<Cut> cuts{{"model.num_attention_heads", heads, {"model.num_attention_heads"}}};
    bool dense = false;
    for (int64_t i = 0; i < m.num_hidden_layers; ++i) dense = dense || !m.moe.in_layer(i);
    if (dense) cuts.push_back({"model.intermediate_size", m.intermediate_size, {"model.intermediate_size"}});
    if (r_.parallel.sequence_parallel && r_.data.seq_length % context == 0)
      cuts.push_back({context > 1 ? "train.micro_batch_size * data.seq_length / parallel.context"
                                  : "train.micro_batch_size * data.seq_length",
                      r_.train.micro_batch_size * (r_.data.seq_length / context),
                      {"data.seq_length", "train.micro_batch_size"}});
    // A suggested value must satisfy all of them.
    const auto good = [&](int64_t r) {
      return kv_good(r) && std::all_of(cuts.begin(), cuts.end(), [&](const Cut& c) { return c.n % r == 0; });
    };
    for (const Cut& c : cuts)
      if (c.n % ranks != 0)
        broken("parallel.tensor",
               fmt::format("must divide {} ({}){}", c.what, c.n, nearest(ranks, 1, c.n, good)), c.keys);
    if (heads % ranks == 0 && !kv_good(ranks))
      broken("parallel.tensor",
             fmt::format("must divide model.num_key_value_heads ({}) or be a multiple of it{}", kv,
                         nearest(ranks, 1, heads, good)),
             {"model.num_key_value_heads"});
  }

  /// Checks the context axis, which shards sequences, and heads if ranks exchange sequence for heads.
  void context_cuts() {
    const Parallel& p = r_.parallel;
    if (p.context <= 1 || (p.tensor > 1 && p.tensor_mode != TensorModeChoice::one_d))
      return;  // another rule reports the error
    const std::string context = "parallel.context";
    const bool ring = p.context_comm == ContextComm::p2p || p.context_comm == ContextComm::a2a_p2p;
    const int64_t unit = ring ? 2 * p.context : p.context;
    if (r_.data.seq_length % unit != 0)
      broken(
          "data.seq_length",
          fmt::format("must be a multiple of {}{} ({}) with parallel.context_comm: {}{}", ring ? "2 * " : "",
                      context, unit, p.context_comm, nearest_multiple(r_.data.seq_length, unit)),
          {context, "parallel.context_comm"});
    int64_t exchange = p.context_comm == ContextComm::a2a ? p.context : 1;
    std::string key = context;
    if (p.context_comm == ContextComm::a2a_p2p) {
      exchange = p.context_inner;
      key = "parallel.context_inner";
      if (p.context % exchange != 0 || exchange >= p.context)
        return broken(
            key,
            fmt::format("must divide {} ({}) and be smaller; it is the size of the groups that exchange, "
                        "with rings across them{}",
                        context, p.context,
                        nearest(exchange, 2, p.context - 1, [&](int64_t n) { return p.context % n == 0; })),
            {context, "parallel.context_comm"});
    }
    for (const auto& [name, heads] :
         {std::pair<const char*, int64_t>{"model.num_attention_heads", r_.model.num_attention_heads},
          std::pair<const char*, int64_t>{"model.num_key_value_heads", r_.model.num_key_value_heads}}) {
      // Each rank has one key-value head if there are more tensor ranks than heads.
      const int64_t here = heads % p.tensor == 0 ? heads / p.tensor : p.tensor % heads == 0 ? 1 : exchange;
      if (here % exchange == 0) continue;
      const std::string of = p.tensor > 1 ? fmt::format("{} / parallel.tensor", name) : std::string(name);
      return broken(key,
                    fmt::format("must divide {} ({}) with parallel.context_comm: {}, which exchanges "
                                "sequence for heads; p2p and all_gather do not{}",
                                of, here, p.context_comm,
                                nearest(exchange, 2, here, [&](int64_t n) { return here % n == 0; })),
                    {name, "parallel.context_comm", "parallel.tensor"});
    }
  }

  /// Reports keys without a meaning in this recipe. A strict key is an error, because its author expects a
  /// different run. Others are noted.
  void ineffective(std::vector<std::string>& notes) {
    std::vector<const Key*> found;  // small: few of some hundred keys are given
    for (const auto& [path, place] : o_.given)
      if (const Key* key = find_key(path); key && key->applies && !key->applies(r_)) found.push_back(key);
    std::sort(found.begin(), found.end());  // in schema order
    for (const Key* key : found) {
      if (key->strict)
        broken(key->path, fmt::format("has a meaning only with {}; remove the key", key->applies_when));
      else
        notes.push_back(fmt::format("{}: {} has no effect without {}", o_.place(key->path).text(), key->path,
                                    key->applies_when));
    }
  }

  void batch(int64_t data) {
    const Train& t = r_.train;
    const int64_t unit = batch_unit(r_, data), largest = r_.diloco.largest_share();
    batch_ramp_rules(r_, data, report());
    if (t.global_batch_size % unit == 0)
      return pipeline_batch_rules(r_, t.global_batch_size / unit * largest, unit / largest, report());
    std::vector<std::string> keys{"train.micro_batch_size", "parallel.data"};
    if (!r_.diloco.shares.empty()) keys.push_back("diloco.shares");
    broken("train.global_batch_size",
           fmt::format("must be a multiple of {}{}", batch_unit_text(r_, data),
                       nearest_multiple(t.global_batch_size, unit)),
           keys);
  }

  void layout(int64_t world, int64_t per_node) {
    const Parallel& p = r_.parallel;
    const int64_t others = p.tensor * p.pipeline * p.context;
    if (p.data < 0) {
      if (world % others != 0)
        return broken(
            "parallel.data",
            fmt::format("{} ranks are not a multiple of tensor * pipeline * context = {}; start {} or {}",
                        world, others, world / others * others, (world / others + 1) * others));
    } else if (p.data * others != world) {
      return broken(
          "parallel.data",
          fmt::format("the axes make {} ranks, and there are {}; nearest valid value: {}", p.data * others,
                      world, world % others == 0 ? std::to_string(world / others) : "-1"));
    }
    diloco_layout_rules(r_, world, per_node, report());
    batch(world / others);
    const int64_t first = level_layout(r_, world, per_node, report());
    check_moe_layout(r_, world / others, first, report());
    intra_node_experts(r_, world / others, first, ranks_on_host(r_, world, per_node), report());
  }

 private:
  const Recipe& r_;
  const RecipeOrigins& o_;
  Diagnostics& p_;
};

/// Checks that a frozen model that was read divides over the ranks, as the model does.
void frozen_model_cuts(const Recipe& recipe, const char* key, const ModelConfig& model,
                       const RecipeOrigins& origins, const BrokenRule& broken) {
  Recipe frozen = recipe;
  frozen.model = model;
  Diagnostics problems;
  Rules rules(frozen, origins, problems);
  rules.tensor_cuts();
  rules.context_cuts();
  for (const Diagnostic& p : problems.list()) broken(key, fmt::format("its {} {}", p.path, p.text), {p.path});
  if (recipe.parallel.pipeline > 1 && model.num_hidden_layers != recipe.model.num_hidden_layers)
    broken(key,
           fmt::format("has {} layers, and model.num_hidden_layers is {}: with parallel.pipeline = {} both "
                       "models run in the same stages; nearest valid value: parallel.pipeline: 1",
                       model.num_hidden_layers, recipe.model.num_hidden_layers, recipe.parallel.pipeline),
           {"parallel.pipeline"});
}

}  // namespace

void check_rules(const Recipe& recipe, const RecipeOrigins& origins, Diagnostics& diagnostics,
                 std::vector<std::string>& notes) {
  Rules rules(recipe, origins, diagnostics);
  rules.run();
  rules.model();
  rules.training();
  rules.tensor_cuts();
  rules.context_cuts();
  const BrokenRule broken = rules.report();
  if (recipe.distillation.model)
    frozen_model_cuts(recipe, "distillation.teacher", *recipe.distillation.model, origins, broken);
  if (recipe.preference.model)
    frozen_model_cuts(recipe, "preference.reference_model", *recipe.preference.model, origins, broken);
  pipeline_rules(recipe, origins, broken);
  level_rules(recipe, broken);
  check_moe(recipe, broken);
  check_dispatch(recipe, broken);
  graph_rules(recipe, broken);
  overlap_rules(recipe, broken);
  feed_forward_rules(recipe, broken);
  attention_rules(recipe, broken);
  precision_rules(recipe, broken);
  fp8_rules(recipe, broken);
  optimizer_rules(recipe, broken);
  checkpoint_rules(recipe, broken);
  sparsity_rules(recipe, broken);
  diloco_rules(recipe, broken);
  replica_rules(recipe, broken);
  quantization_rules(recipe, broken);
  lora_rules(recipe, broken);
  preference_rules(recipe, broken);
  distillation_rules(recipe, broken);
  recompute_rules(recipe, broken);
  offload_rules(recipe, broken);
  data_rules(recipe, broken);
  profile_rules(recipe, broken);
  launch_rules(recipe, broken);
  if (recipe.parallel.data != 0) rules.batch(std::max<int64_t>(1, recipe.parallel.data));
  rules.ineffective(notes);
  moe_notes(recipe, notes);
  optimizer_notes(recipe, origins, notes);
}

void check_layout(const Recipe& recipe, const RecipeOrigins& origins, int64_t world_size,
                  int64_t ranks_per_node, Diagnostics& diagnostics) {
  LT_CHECK(world_size >= 1, "expected at least 1 rank, got {}", world_size);
  Rules rules(recipe, origins, diagnostics);
  rules.layout(world_size, ranks_per_node);
  graph_layout_rules(recipe, world_size, rules.report());
  profile_layout_rules(recipe, world_size, rules.report());
}

void check_device_rules(const Recipe& resolved, const RecipeOrigins& origins, Diagnostics& diagnostics) {
  Rules rules(resolved, origins, diagnostics);
  offload_device_rules(resolved, rules.report());
  attention_device_rules(resolved, rules.report());
}

int64_t ranks_on_host(const Recipe& recipe, int64_t world_size, int64_t ranks_per_node) {
  if (ranks_per_node > 0) return ranks_per_node;
  return recipe.launch.ranks_per_node > 0 ? recipe.launch.ranks_per_node : world_size;
}

bool experts_apart(const Recipe& r) {
  return r.model.moe.num_experts > 0 && r.parallel.expert_tensor < r.parallel.tensor;
}

Mesh plain_mesh(const Recipe& r, int64_t data) {
  Mesh m;
  const Parallel& p = r.parallel;
  const auto set = [&](Axis a, int64_t n) { m.degree[static_cast<int>(a)] = static_cast<int>(n); };
  m.sites = static_cast<int>(std::max<int64_t>(1, r.diloco.sites));
  set(Axis::data, std::max<int64_t>(1, data / m.sites)), set(Axis::pipeline, p.pipeline),
      set(Axis::context, p.context), set(Axis::tensor, p.tensor);
  std::string error;  // already reported by check_rules
  m.order = parse_axis_order(p.order, error);
  return m;
}

}  // namespace ltrain::recipe
