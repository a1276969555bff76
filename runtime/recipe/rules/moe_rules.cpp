#include "runtime/recipe/rules/moe_rules.h"

#include <cmath>

#include "base/error.h"
#include "parallel/mesh/mesh.h"
#include "runtime/recipe/nearest_value.h"
#include "runtime/recipe/rules/rules.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {
namespace {

const std::string kExperts = "model.moe.num_experts", kTopK = "model.moe.top_k",
                  kExpertRanks = "parallel.expert", kExpertTensor = "parallel.expert_tensor",
                  kTensor = "parallel.tensor";

/// Returns why experts cannot be sharded over `ranks` ranks; "": they can.
std::string wrong_cut(const Recipe& r, int64_t data, int64_t shard, int64_t ranks) {
  Mesh m = plain_mesh(r, data);
  if (shard > 0 && !m.split_levels(shard).empty()) return "";  // another rule reports the error
  return m.cut_experts(static_cast<int>(ranks), experts_apart(r));
}

void routing(const MoeConfig& m, const BrokenRule& broken) {
  if (m.top_k > m.num_experts)
    broken(kTopK,
           fmt::format("must be at most {} ({}); nearest valid value: {}", kExperts, m.num_experts,
                       m.num_experts),
           {kExperts});
  const std::string groups = "model.moe.router.n_group", kept = "model.moe.router.topk_group";
  if (m.num_experts % m.n_group != 0)
    return broken(groups,
                  fmt::format("must divide {} ({}){}", kExperts, m.num_experts,
                              nearest(m.n_group, 1, std::min<int64_t>(64, m.num_experts),
                                      [&](int64_t n) { return m.num_experts % n == 0; })),
                  {kExperts});
  if (m.topk_group > m.n_group)
    return broken(
        kept, fmt::format("must be at most {} ({}); nearest valid value: {}", groups, m.n_group, m.n_group),
        {groups});
  const int64_t each = m.num_experts / m.n_group, needed = (m.top_k + each - 1) / each;
  if (m.topk_group < needed && needed <= m.n_group)
    broken(kept,
           fmt::format("groups of {} experts have {} in all, and a token chooses {}; nearest valid value: {}",
                       each, each * m.topk_group, m.top_k, needed),
           {groups, kTopK, kExperts});
}

/// Rules of router.selection and related keys.
void selection(const Recipe& r, const BrokenRule& broken) {
  const MoeConfig& m = r.model.moe;
  const std::string choice = "model.moe.router.selection", norm = "model.moe.router.norm_topk_prob";
  if (m.selection == Selection::gshard_top2 && m.top_k != 2)
    broken(kTopK,
           fmt::format("{}: gshard takes the best expert and a second one; nearest valid value: 2", choice),
           {choice});
  if (m.selection == Selection::gshard_top2 && !m.norm_topk_prob)
    broken(norm, fmt::format("{}: gshard weighs the two by their sum; nearest valid value: true", choice),
           {choice});
  if (m.selection != Selection::expert_choice) return;
  const auto refuse = [&](const std::string& key, const char* why, const char* value) {
    broken(key, fmt::format("{}: expert_choice {}; nearest valid value: {}", choice, why, value), {choice});
  };
  if (m.norm_topk_prob) refuse(norm, "weighs by the scores as they are", "false");
  if (m.order != RouterOrder::topk_last)
    refuse("model.moe.router.order", "has no chosen experts of a token", "topk_last");
  if (m.balance != BalanceLoss::none) refuse("model.moe.balance.kind", "is balanced by itself", "none");
  if (m.bias_update_rate > 0) refuse("model.moe.router.bias_update_rate", "is balanced by itself", "0");
  if (m.n_group > 1) refuse("model.moe.router.n_group", "has no groups", "1");
  if (m.capacity_factor || m.eval_capacity_factor)
    refuse(m.capacity_factor ? "model.moe.capacity_factor" : "model.moe.eval_capacity_factor",
           "takes as many tokens as model.moe.top_k asks for", "null");
  const int64_t tokens = r.train.micro_batch_size * r.data.seq_length;
  if (tokens * m.top_k < m.num_experts)
    broken(kTopK,
           fmt::format("{}: expert_choice leaves less than a token to an expert ({} tokens * {} / {}); "
                       "nearest valid value: {}",
                       choice, tokens, m.top_k, m.num_experts, (m.num_experts + tokens - 1) / tokens),
           {choice, "train.micro_batch_size", "data.seq_length", kExperts});
}

/// Rules of experts that token ids choose.
void by_token(const Recipe& r, const BrokenRule& broken) {
  const MoeConfig& m = r.model.moe;
  if (!m.by_token()) return;
  const std::string kind = "model.moe.router.kind", step = "model.moe.router.freeze_step";
  const bool hash = m.kind == RouterKind::hash;
  const std::string by = hash ? kind + ": hash" : fmt::format("{}: {}", step, m.freeze_step),
                    other = hash ? kind + ": learned" : step + ": 0";
  const auto refuse = [&](bool is, const std::string& key, const std::string& why, const std::string& value) {
    if (is)
      broken(key, fmt::format("{}; nearest valid value: {}, or {}", why, value, other), {hash ? kind : step});
  };
  refuse(m.selection != Selection::top_k, "model.moe.router.selection",
         "token ids have model.moe.top_k experts each with " + by, "top_k");
  refuse(m.n_group > 1, "model.moe.router.n_group", "token ids choose without groups with " + by, "1");
  refuse(m.bias_update_rate > 0, "model.moe.router.bias_update_rate",
         "token ids choose without a bias with " + by, "0");
  refuse(hash && m.balance != BalanceLoss::none, "model.moe.balance.kind",
         "the table of token ids does not learn, and no loss can balance it", "none");
  if (trains_preferences(r.task))
    broken(
        hash ? kind : step,
        fmt::format("task: {} is not built with it; nearest valid value: {}", r.task, hash ? "learned" : "0"),
        {"task"});
  if (hash) return;
  const auto refuse_step = [&](bool is, const std::string& why, const std::string& with) {
    if (is) broken(step, fmt::format("{}; nearest valid value: 0, or {}", why, with), {});
  };
  if (m.freeze_step == 1)
    broken(step, "step 1 has nothing that routers taught before; nearest valid value: 2", {});
  if (m.freeze_step > r.train.train_steps)
    broken(step,
           fmt::format("is after train.train_steps ({}); nearest valid value: {}", r.train.train_steps,
                       r.train.train_steps),
           {"train.train_steps"});
  refuse_step(r.train.freeze_router, "routers that train.freeze_router keeps teach nothing",
              "train.freeze_router: false");
  refuse_step(r.diloco.on(), "is not built for several sites, whose tables would differ", "diloco.sites: 0");
  refuse_step(r.replicas.on(), "is not built for replicas, which join without the table",
              "replicas.count: 0");
}

/// Rules of experts that are the identity.
void zero_experts(const MoeConfig& m, const BrokenRule& broken) {
  if (m.zero_experts == 0) return;
  const std::string key = "model.moe.zero_experts", groups = "model.moe.router.n_group",
                    mean = "model.moe.router.experts_per_token", choice = "model.moe.router.selection";
  if (m.selection == Selection::expert_choice)
    broken(
        key,
        "each expert computes the tokens that it chooses; nearest valid value: 0, or " + choice + ": top_k",
        {choice});
  if (m.n_group > 1)
    broken(groups,
           fmt::format("groups are of experts that compute, and {} is {}; nearest valid value: 1", key,
                       m.zero_experts),
           {key});
  if (m.experts_per_token && *m.experts_per_token >= static_cast<double>(m.top_k))
    broken(mean,
           fmt::format("must be below {} ({}), of which zero experts get the others; nearest valid value: {}",
                       kTopK, m.top_k, write_number(static_cast<double>(m.top_k) - 0.5)),
           {kTopK});
}

void balance(const Recipe& r, const BrokenRule& broken) {
  if (r.model.moe.balance == BalanceLoss::hf && r.parallel.pipeline > 1)
    broken("model.moe.balance.kind",
           fmt::format("hf adds up the tokens of all layers, and parallel.pipeline: {} has them on several "
                       "ranks; nearest valid value: switch, or parallel.pipeline: 1",
                       r.parallel.pipeline),
           {"parallel.pipeline"});
}

void router_training(const Recipe& r, const BrokenRule& broken) {
  const std::string warmup = "train.router_warmup_steps";
  const int64_t n = r.train.router_warmup_steps;
  if (n == 0) return;
  if (r.train.freeze_router)
    broken(warmup, "train.freeze_router keeps routers as they are; nearest valid value: 0",
           {"train.freeze_router"});
  if (n >= r.train.train_steps)
    broken(
        warmup,
        fmt::format("leaves none of train.train_steps ({}) to the other parameters; nearest valid value: {}",
                    r.train.train_steps, r.train.train_steps - 1),
        {"train.train_steps"});
  if (r.optimizer.uses(UpdateRule::adafactor))
    broken(warmup,
           "the second moment of adafactor follows the steps of the run, which others would begin late; "
           "nearest valid value: 0, or optimizer.kind: adamw",
           {"optimizer.kind", "optimizer.groups"});
}

/// Choices that `key` reads or writes are k experts of each token, found by its sample.
void choices_of_tokens(const Recipe& r, const std::string& key, const BrokenRule& broken) {
  if (r.model.moe.selection != Selection::top_k)
    broken(
        key,
        fmt::format("needs tokens that choose model.moe.top_k experts each, and model.moe.router.selection "
                    "is {}; remove the key, or model.moe.router.selection: top_k",
                    to_string(r.model.moe.selection)),
        {"model.moe.router.selection"});
  if (trains_preferences(r.task))
    broken(key, fmt::format("task: {} is not built with it; remove the key", to_string(r.task)), {"task"});
  if (r.diloco.on())
    broken(key, "is not built for several sites; remove the key, or diloco.sites: 0", {"diloco.sites"});
}

void router_records(const Recipe& r, const BrokenRule& broken) {
  const std::string record = "train.router_record", replay = "train.router_replay",
                    probe = "train.routing_probe_interval";
  if (r.train.router_record && r.train.router_replay)
    broken(replay, "routers whose choices are given have none to record; remove train.router_record",
           {record});
  if (r.train.router_replay && r.model.moe.by_token())
    broken(replay,
           fmt::format("token ids choose experts with {}; remove the key",
                       r.model.moe.kind == RouterKind::hash ? "model.moe.router.kind: hash"
                                                            : "model.moe.router.freeze_step"),
           {"model.moe.router.kind", "model.moe.router.freeze_step"});
  if (r.train.router_replay)
    choices_of_tokens(r, replay, broken);
  else if (r.train.router_record)
    choices_of_tokens(r, record, broken);
  if (r.train.routing_probe_interval == 0) return;
  choices_of_tokens(r, probe, broken);
  if (r.data.eval.empty() && r.data.shuffle_window > 0)
    broken(probe,
           "reads sequences of data.train before the first step, whose token files are made while it trains; "
           "nearest valid value: 0, or data.shuffle_window: 0, or give data.eval",
           {"data.shuffle_window"});
  if (r.replicas.on())
    broken(probe,
           "is not built for replicas, of which each would probe; remove the key, or replicas.count: 0",
           {"replicas.count"});
}

void upcycling(const Recipe& r, const BrokenRule& broken) {
  if (!r.checkpoint.upcycle) return;
  const MoeConfig& m = r.model.moe;
  const std::string key = "checkpoint.upcycle", width = "model.moe.intermediate_size";
  if (dense_families(*r.model.family).empty())
    broken(key,
           fmt::format("no dense model computes as {} does, apart from its experts; remove the key, or "
                       "model.architecture: llama",
                       r.model.family->name),
           {"model.architecture"});
  if (m.by_token())
    broken(key,
           "begins routers that learn, and here token ids choose; remove the key, or model.moe.router.kind: "
           "learned "
           "and model.moe.router.freeze_step: 0",
           {});
  const int64_t all = r.model.intermediate_size, one = m.intermediate_size;
  if (one > all || all % one != 0) {
    int64_t parts = std::max<int64_t>(1, all / one);
    while (all % parts != 0) --parts;
    broken(width,
           fmt::format("experts that begin as parts of a feed-forward divide its width, "
                       "model.intermediate_size = {}; nearest valid value: {}",
                       all, all / parts),
           {key, "model.intermediate_size"});
  } else if (const int64_t parts = all / one; parts > 1) {
    const std::string all_or_none = fmt::format(
        "{} experts are one feed-forward of the dense model, and a token chooses all of them or none", parts);
    const auto refuse = [&](bool is, const std::string& of, const std::string& value) {
      if (is) broken(of, all_or_none + "; nearest valid value: " + value, {key, width});
    };
    refuse(m.selection != Selection::top_k, "model.moe.router.selection", "top_k");
    refuse(m.zero_experts > 0, "model.moe.zero_experts", "0");
    refuse(m.n_group > 1 && m.num_experts / m.n_group % parts != 0, "model.moe.router.n_group", "1");
    for (const auto& [of, number] : {std::pair(kExperts, m.num_experts), std::pair(kTopK, m.top_k)})
      refuse(number % parts != 0, of, std::to_string(std::max<int64_t>(1, number / parts) * parts));
  }
  if (m.shared_experts > 0)
    broken("model.moe.shared_experts",
           "a dense checkpoint has nothing for shared experts; nearest valid value: 0", {key});
}

void capacity(const Recipe& r, const BrokenRule& broken) {
  const MoeConfig& m = r.model.moe;
  for (const auto& [key, factor] :
       {std::pair<std::string, std::optional<double>>{"model.moe.capacity_factor", m.capacity_factor},
        {"model.moe.eval_capacity_factor", m.eval_capacity_factor}}) {
    if (!factor || (key != "model.moe.capacity_factor" && factor == m.capacity_factor)) continue;
    const double tokens = static_cast<double>(r.train.micro_batch_size * r.data.seq_length);
    const double even = tokens * static_cast<double>(m.top_k) / static_cast<double>(m.router_outputs());
    if (*factor * even < 1)
      broken(
          key,
          fmt::format("leaves {} of a token to an expert ({} * {} tokens * {} / {}); nearest valid value: {}",
                      write_number(*factor * even), write_number(*factor), tokens, m.top_k,
                      m.router_outputs(), write_number(std::ceil(1000 / even) / 1000)),
          {"train.micro_batch_size", "data.seq_length", kExperts, kTopK});
  }
}

void tensor(const Recipe& r, const BrokenRule& broken) {
  const Parallel& p = r.parallel;
  const ModelConfig& m = r.model;
  if (p.tensor == 1) return;
  if (p.tensor_mode != TensorModeChoice::one_d)
    return broken("parallel.tensor_mode", "MoE models are cut in one dimension; nearest valid value: 1d",
                  {kExperts});
  if (p.expert_tensor != 1 && p.expert_tensor != p.tensor)
    return broken(kExpertTensor,
                  fmt::format("must be 1 or {} ({}); nearest valid value: {}", kTensor, p.tensor,
                              p.expert_tensor > p.tensor ? p.tensor : 1),
                  {kTensor});
  const std::string width = "model.moe.intermediate_size";
  const int64_t f = m.moe.intermediate_size, shared = m.moe.shared_experts * f;
  if (experts_apart(r)) {
    if (!p.sequence_parallel)
      broken(kExpertTensor,
             fmt::format("tensor ranks with experts of their own need rows of their own; nearest valid "
                         "value: {}, or parallel.sequence_parallel: true",
                         p.tensor),
             {kTensor, "parallel.sequence_parallel"});
    if (p.expert % p.tensor != 0)
      broken(kExpertRanks,
             fmt::format("must be a multiple of {} ({}) with {}: 1{}", kTensor, p.tensor, kExpertTensor,
                         nearest(p.expert, 1, 1 << 20, [&](int64_t n) { return n % p.tensor == 0; })),
             {kTensor, kExpertTensor});
    if (m.moe.balance == BalanceLoss::sequence && r.train.micro_batch_size > 1)
      broken("model.moe.balance.kind",
             fmt::format("sequence with {}: 1 cuts a micro-batch where sequences do not end; nearest valid "
                         "value: switch, or train.micro_batch_size: 1",
                         kExpertTensor),
             {kExpertTensor, "train.micro_batch_size"});
  }
  for (const int64_t n : {experts_apart(r) ? 0 : f, shared})
    if (n % p.tensor != 0)
      return broken(kTensor,
                    fmt::format("must divide {} ({}){}", width, n,
                                nearest(p.tensor, 1, n, [&](int64_t ranks) { return n % ranks == 0; })),
                    {width});
}

}  // namespace

void check_moe(const Recipe& r, const BrokenRule& broken) {
  const MoeConfig& m = r.model.moe;
  const Parallel& p = r.parallel;
  const Family& family = *r.model.family;
  if (m.num_experts == 0) {
    if (family.experts == Experts::always)
      broken(kExperts, fmt::format("{} is an MoE model; nearest valid value: 1", family.name),
             {"model.architecture"});
    if (p.expert > 1)
      broken(kExpertRanks,
             "a dense model has no experts to cut; nearest valid value: 1; or give model.moe.num_experts",
             {kExperts});
    if (p.expert_tensor != 1 && p.expert_tensor != p.tensor)
      broken(kExpertTensor, "a dense model has no experts; remove the key", {});
    return;
  }
  if (family.experts == Experts::never)
    return broken(
        kExperts,
        "experts are SwiGLU layers of llama's kind; nearest valid value: 0, or model.architecture: llama",
        {"model.architecture"});
  routing(m, broken);
  selection(r, broken);
  zero_experts(m, broken);
  by_token(r, broken);
  balance(r, broken);
  router_training(r, broken);
  router_records(r, broken);
  upcycling(r, broken);
  capacity(r, broken);
  tensor(r, broken);
  if (m.balance == BalanceLoss::hf && r.model.num_nextn_predict_layers > 0)
    broken("model.num_nextn_predict_layers",
           "model.moe.balance.kind: hf is over the tokens of all layers, as transformers has them, which has "
           "no modules behind the last; nearest valid value: 0, or model.moe.balance.kind: switch",
           {"model.moe.balance.kind"});
  for (const int64_t layer : m.dense_layers)
    if (layer >= r.model.num_hidden_layers)
      broken("model.moe.dense_layers",
             fmt::format("{} is beyond the {} layers, which are numbered from 0", layer,
                         r.model.num_hidden_layers),
             {"model.num_hidden_layers"});
  if (m.num_experts % p.expert != 0)
    broken(kExpertRanks,
           fmt::format("must divide {} ({}){}", kExperts, m.num_experts,
                       nearest(p.expert, 1, m.num_experts,
                               [&](int64_t n) {
                                 return m.num_experts % n == 0 &&
                                        (p.data < 1 || wrong_cut(r, p.data, 0, n).empty());
                               })),
           {kExperts});
}

void moe_notes(const Recipe& r, std::vector<std::string>& notes) {
  const MoeConfig& m = r.model.moe;
  if (m.num_experts > 0 && m.selection == Selection::expert_choice)
    notes.push_back(
        "model.moe.router.selection: expert_choice: whether an expert takes a token depends on those that "
        "follow it: the loss is that of a model that sees a little of the future, and generation, which does "
        "not, is worse than it says");
  if (m.num_experts > 0 && (m.selection == Selection::top_p || m.zero_experts > 0))
    notes.push_back(fmt::format(
        "{}: memory, bytes and time are planned for model.moe.top_k: {} experts a "
        "token, the most there can be; experts_per_token in metrics.jsonl has their mean number",
        m.selection == Selection::top_p ? "model.moe.router.selection: top_p"
                                        : fmt::format("model.moe.zero_experts: {}", m.zero_experts),
        m.top_k));
  const bool sums_to_one =
      m.norm_topk_prob || (m.order == RouterOrder::topk_first && m.score == RouterScore::softmax);
  if (m.num_experts > 1 && m.top_k == 1 && m.selection != Selection::expert_choice && sums_to_one &&
      !r.train.freeze_router)
    notes.push_back(
        fmt::format("{}: 1 with model.moe.router.{}: every expert's weight is 1, so that routers learn from "
                    "balance losses alone, not from the loss of tokens",
                    kTopK, m.norm_topk_prob ? "norm_topk_prob: true" : "order: topk_first"));
  if (m.num_experts > 0 && r.parallel.expert > 1 &&
      m.row_budget.value_or(0) >= static_cast<double>(r.parallel.expert))
    notes.push_back(fmt::format(
        "model.moe.row_budget: {:g}: bounds nothing: of parallel.expert: {} ranks none can get more than {} "
        "even shares",
        *m.row_budget, r.parallel.expert, r.parallel.expert));
}

void check_moe_layout(const Recipe& r, int64_t data, int64_t shard, const BrokenRule& broken) {
  const Parallel& p = r.parallel;
  const bool one_d = p.tensor == 1 || p.tensor_mode == TensorModeChoice::one_d;
  if (p.expert == 1 || r.model.moe.num_experts % p.expert != 0 || !one_d) return;
  const auto wrong = [&](int64_t ranks) { return wrong_cut(r, data, shard, ranks); };
  const auto good = [&](int64_t ranks) {
    return r.model.moe.num_experts % ranks == 0 && wrong(ranks).empty();
  };
  if (const std::string text = wrong(p.expert); !text.empty())
    broken(kExpertRanks, text + nearest(p.expert, 1, r.model.moe.num_experts, good),
           {"parallel.data", "parallel.context", kTensor, "parallel.shard_group"});
}

}  // namespace ltrain::recipe
