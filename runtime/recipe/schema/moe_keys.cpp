#include "runtime/recipe/schema/moe_keys.h"

#include <algorithm>

#include "runtime/recipe/schema/key_makers.h"

namespace ltrain::recipe {
namespace {

bool is_moe(const Recipe& r) { return r.model.moe.num_experts > 0; }

/// Key of MoE models only; an error in a dense model.
Key of_moe(Key key) {
  if (!key.applies) key.when("model.moe.num_experts above 0", true, is_moe);
  return key;
}

/// Defaults of the families, grouped by value: "mixtral 8, qwen3_moe 128, olmoe 64, else 0".
std::string by_family(int64_t FamilyDefaults::*value, int64_t otherwise) {
  std::vector<std::pair<int64_t, std::string>> groups;
  for (const Family* f : families()) {
    const int64_t v = f->defaults.*value;
    if (v == otherwise) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == v; });
    if (same == groups.end())
      groups.emplace_back(v, f->name);
    else
      same->second += ", " + f->name;
  }
  std::string text;
  for (const auto& [v, names] : groups) text += fmt::format("{} {}, ", names, v);
  return text + fmt::format("else {}", otherwise);
}

/// Adds the selection of experts, and its balance by a bias.
void add_selection_keys(std::vector<Key>& t) {
  const auto add = [&](Key key) { t.push_back(of_moe(std::move(key))); };
  add(choice(
      "model.moe.router.kind", LT_MEMBER(model.moe.kind), {},
      "learned: a router chooses by the token's hidden state. hash: a fixed table of token ids chooses, "
      "which seed and layer give, and the router weighs."));
  add(integer(
          "model.moe.router.freeze_step", LT_MEMBER(model.moe.freeze_step),
          "StableMoE: the first step in which token ids choose. Until then routers choose, and teach their "
          "choices to a table of scores of token ids; 0: never.")
          .between(0, 1e12)
          .when("model.moe.router.kind: learned", true,
                [](const Recipe& r) { return is_moe(r) && r.model.moe.kind == RouterKind::learned; }));
  add(choice("model.moe.router.selection", LT_MEMBER(model.moe.selection), {"base"},
             "top_k: each token chooses its best experts. gshard: the best, and in training the second with "
             "a probability that grows with its weight. expert_choice: each expert chooses its best tokens, "
             "the same number for all; it sees later tokens. top_p: each token chooses the fewest best "
             "experts whose scores sum to router.top_p, at most top_k."));
  add(number("model.moe.router.second_threshold", LT_MEMBER(model.moe.second_threshold),
             "Weight of the second expert above which it is always chosen.")
          .resumes(OnResume::any)
          .between(1e-6, 1)
          .when("model.moe.router.selection: gshard", true, [](const Recipe& r) {
            return is_moe(r) && r.model.moe.selection == Selection::gshard_top2;
          }));
  add(number("model.moe.router.top_p", LT_MEMBER(model.moe.top_p),
             "Sum of a token's scores, of 1 over all experts, from which it takes no further expert.")
          .between(1e-6, 1)
          .when("model.moe.router.selection: top_p", true,
                [](const Recipe& r) { return is_moe(r) && r.model.moe.selection == Selection::top_p; }));
  add(number("model.moe.router.jitter_eps", LT_MEMBER(model.moe.jitter_eps),
             "In training, each input of the router is multiplied by a random number between 1 - this and 1 "
             "+ this; 0: none.")
          .resumes(OnResume::any)
          .between(0, 0.99)
          .alias({"router_jitter_noise", "moe_input_jitter_eps"}));
  add(number("model.moe.router.bias_update_rate", LT_MEMBER(model.moe.bias_update_rate),
             "Balance without a loss: experts are chosen by score + bias. After each step this amount is "
             "added to the bias of experts with less than an even share and subtracted from that of experts "
             "with more; 0: no bias.")
          .resumes(OnResume::both_or_no)
          .between(0, 1)
          .derived(
              "deepseek_v3 0.001, else 0",
              [](Recipe& r) { r.model.moe.bias_update_rate = r.model.family->defaults.bias_update_rate; })
          .alias({"moe_router_bias_update_rate"}));
  add(number("model.moe.router.experts_per_token", LT_MEMBER(model.moe.experts_per_token),
             "Mean number of a token's experts that compute, to which biases move: that of a real expert by "
             "bias_update_rate times the difference of its share of choices to experts_per_token / (top_k * "
             "num_experts), that of a zero expert not at all. null: by its sign, to even shares of all.")
          .resumes(OnResume::any)
          .above(0)
          .when("model.moe.zero_experts above 0 and model.moe.router.bias_update_rate above 0", true,
                [](const Recipe& r) {
                  return is_moe(r) && r.model.moe.zero_experts > 0 && r.model.moe.bias_update_rate > 0;
                }));
}

/// Adds scores, weights and groups of experts.
void add_weight_keys(std::vector<Key>& t) {
  const auto add = [&](Key key) { t.push_back(of_moe(std::move(key))); };
  add(choice("model.moe.router.score", LT_MEMBER(model.moe.score), {"sinkhorn"},
             "Function from router logits to scores, in fp32.")
          .alias({"router_score_function"})
          .derived("deepseek_v3 sigmoid, else softmax", [](Recipe& r) {
            r.model.moe.score =
                r.model.family->defaults.sigmoid_scores ? RouterScore::sigmoid : RouterScore::softmax;
          }));
  add(choice("model.moe.router.order", LT_MEMBER(model.moe.order), {},
             "topk_last: scores of all experts, then the best ones. topk_first: the best logits, then scores "
             "among these."));
  add(truth("model.moe.router.norm_topk_prob", LT_MEMBER(model.moe.norm_topk_prob),
            "Divides the weights of a token's experts by their sum.")
          .derived("true; " + join(family_names([](const Family& f) { return !f.defaults.norm_topk_prob; })) +
                       ", top_k: 1, selection: expert_choice and selection: top_p: false",
                   [](Recipe& r) {
                     const MoeConfig& m = r.model.moe;
                     r.model.moe.norm_topk_prob =
                         r.model.family->defaults.norm_topk_prob && (m.top_k > 1 || m.num_experts <= 1) &&
                         m.selection != Selection::expert_choice && m.selection != Selection::top_p;
                   }));
  add(number("model.moe.router.routed_scaling_factor", LT_MEMBER(model.moe.routed_scaling_factor),
             "Factor on the weights, after norm_topk_prob.")
          .above(0)
          .alias({"router_topk_scaling_factor"})
          .derived("deepseek_v3 2.5, else 1", [](Recipe& r) {
            r.model.moe.routed_scaling_factor = r.model.family->defaults.routed_scaling_factor;
          }));
  add(integer("model.moe.router.n_group", LT_MEMBER(model.moe.n_group),
              "Groups of neighbouring experts. A token chooses experts only from topk_group of them.")
          .between(1, 64)
          .alias({"router_num_groups"}));
  add(integer("model.moe.router.topk_group", LT_MEMBER(model.moe.topk_group),
              "Groups from which a token chooses experts.")
          .between(1, 64)
          .alias({"router_group_topk"})
          .derived("n_group", [](Recipe& r) { r.model.moe.topk_group = r.model.moe.n_group; }));
}

/// Adds losses of balance and of the router.
void add_balance_keys(std::vector<Key>& t) {
  const auto add = [&](Key key) { t.push_back(of_moe(std::move(key))); };
  add(choice("model.moe.balance.kind", LT_MEMBER(model.moe.balance), {},
             "Balance loss. switch: over each micro-batch on all ranks. sequence: over each sequence. "
             "global: with the choices of the whole batch so far. uniform: divergence of the mean scores "
             "from uniform ones. hf: transformers' load_balancing_loss_func, over the tokens of all layers "
             "together. docs/moe.md defines all of them.")
          .resumes(OnResume::any)
          .alias({"router_load_balancing_type"}));
  add(number("model.moe.balance.coeff", LT_MEMBER(model.moe.balance_coeff), "Weight of the balance loss.")
          .resumes(OnResume::any)
          .at_least(0)
          .alias({"aux_loss_coeff"})
          .when("a model.moe.balance.kind other than none", true,
                [](const Recipe& r) { return is_moe(r) && r.model.moe.balance != BalanceLoss::none; }));
  add(number("model.moe.z_loss_coeff", LT_MEMBER(model.moe.z_loss_coeff),
             "Weight of the mean squared logsumexp of the router logits.")
          .resumes(OnResume::any)
          .at_least(0)
          .alias({"moe_z_loss_coeff"}));
  add(number("model.moe.router.entropy_loss_coeff", LT_MEMBER(model.moe.entropy_coeff),
             "Weight of the mean entropy of a token's scores, divided by their sum: routers become sure, and "
             "take fewer experts with selection: top_p.")
          .resumes(OnResume::any)
          .at_least(0));
}

void add_router_keys(std::vector<Key>& t) {
  add_selection_keys(t);
  add_weight_keys(t);
  add_balance_keys(t);
}

void add_capacity_keys(std::vector<Key>& t) {
  const auto add = [&](Key key) { t.push_back(of_moe(std::move(key))); };
  add(number("model.moe.capacity_factor", LT_MEMBER(model.moe.capacity_factor),
             "Capacity of an expert relative to an even share of a micro-batch, over all ranks that have "
             "parts of its samples. Tokens beyond it are dropped. null: no limit.")
          .resumes(OnResume::any)
          .above(0)
          .alias({"moe_expert_capacity_factor"}));
  add(number("model.moe.eval_capacity_factor", LT_MEMBER(model.moe.eval_capacity_factor), "In evaluation.")
          .resumes(OnResume::any)
          .above(0)
          .derived("capacity_factor",
                   [](Recipe& r) { r.model.moe.eval_capacity_factor = r.model.moe.capacity_factor; }));
  add(number("model.moe.row_budget", LT_MEMBER(model.moe.row_budget),
             "Memory for the token rows of a rank's experts, in even shares (1.5: 50 % more than with even "
             "routing). Rows beyond it are computed in further slices, again in backward, and nothing is "
             "dropped. null: memory for all rows of all ranks of parallel.expert. On one rank there is "
             "nothing to limit.")
          .changes(Effect::speed)
          .resumes(OnResume::any)
          .at_least(1));
  add(choice("model.moe.drop_policy", LT_MEMBER(model.moe.drop_policy), {},
             "Order of dropping beyond the capacity: by least weight, by position from the last token, or "
             "second choices before first ones.")
          .resumes(OnResume::any)
          .alias({"token_drop_policy"})
          .when("model.moe.capacity_factor", true, [](const Recipe& r) {
            const MoeConfig& m = r.model.moe;
            return is_moe(r) && (m.capacity_factor.has_value() || m.eval_capacity_factor.has_value());
          }));
}

}  // namespace

void add_moe_training_keys(std::vector<Key>& t) {
  const auto add = [&](Key key) { t.push_back(of_moe(std::move(key))); };
  add(integer("train.router_warmup_steps", LT_MEMBER(train.router_warmup_steps),
              "Number of first steps that update only the routers of a MoE model.")
          .changes(Effect::schedule)
          .between(0, 1e12));
  add(truth("train.freeze_router", LT_MEMBER(train.freeze_router),
            "For fine-tuning: freezes the routers of a MoE model and their biases.")
          .changes(Effect::function)
          .alias({"freeze_moe_router"}));
  add(text("train.router_record", LT_MEMBER(train.router_record),
           "Folder in which every rank writes the experts that each token chose, a JSON line for each sample "
           "and layer, in a folder for each step.")
          .alias({"moe_routing_trace_path"}));
  add(integer("train.router_record_interval", LT_MEMBER(train.router_record_interval),
              "Steps that are recorded: every n-th.")
          .between(1, 1e12)
          .when("train.router_record", true,
                [](const Recipe& r) { return r.train.router_record.has_value(); }));
  add(text("train.router_replay", LT_MEMBER(train.router_replay),
           "Folder of such records, or of vLLM's routed_experts. Tokens go to these experts, and routers "
           "learn from their own scores of them.")
          .changes(Effect::function));
  add(integer(
          "train.routing_probe_interval", LT_MEMBER(train.routing_probe_interval),
          "Steps between two probes of the routers: the share of choices for fixed sequences that changed "
          "since the probe before (routing_churn); 0: never.")
          .between(0, 1e12));
  add(integer("train.routing_probe_samples", LT_MEMBER(train.routing_probe_samples),
              "Sequences of a probe: the first of data.eval, or of data.train where there is none.")
          .between(1, 65536)
          .when("train.routing_probe_interval above 0", true,
                [](const Recipe& r) { return r.train.routing_probe_interval > 0; }));
}

void add_moe_keys(std::vector<Key>& t) {
  constexpr double kMost = 1 << 20;
  const auto add = [&](Key key) { t.push_back(of_moe(std::move(key))); };
  add(integer("model.moe.num_experts", LT_MEMBER(model.moe.num_experts),
              "Experts per layer, which replace its feed-forward; 0: a dense model.")
          .between(0, 65536)
          .alias({"num_local_experts"})
          .when("a value above 0", false, is_moe)
          .derived(by_family(&FamilyDefaults::num_experts, 0),
                   [](Recipe& r) { r.model.moe.num_experts = r.model.family->defaults.num_experts; }));
  add(integer("model.moe.zero_experts", LT_MEMBER(model.moe.zero_experts),
              "Experts behind the others that give a token back as it is, without work: routers choose them "
              "alike, so that tokens have fewer experts that compute.")
          .between(0, 65536)
          .alias({"zero_expert_num"}));
  add(integer("model.moe.top_k", LT_MEMBER(model.moe.top_k), "Experts per token.")
          .between(1, 65536)
          .alias({"num_experts_per_tok", "moe_router_topk", "topk"})
          .derived(by_family(&FamilyDefaults::top_k, 2),
                   [](Recipe& r) { r.model.moe.top_k = r.model.family->defaults.top_k; }));
  add(integer("model.moe.intermediate_size", LT_MEMBER(model.moe.intermediate_size), "Width of an expert.")
          .between(1, 4 * kMost)
          .alias({"moe_intermediate_size", "moe_ffn_hidden_size"})
          .derived("model.intermediate_size",
                   [](Recipe& r) { r.model.moe.intermediate_size = r.model.intermediate_size; }));
  add(integer("model.moe.layer_step", LT_MEMBER(model.moe.layer_step),
              "MoE layer frequency: every N-th layer has experts, the last of each group.")
          .between(1, 10000)
          .alias({"decoder_sparse_step"}));
  add(integers(
          "model.moe.dense_layers",
          [](Recipe& r) -> std::vector<int64_t>& { return r.model.moe.dense_layers; },
          "Layers without experts, counted from 0.", 0)
          .alias({"mlp_only_layers"}));
  add(integer("model.moe.shared_experts", LT_MEMBER(model.moe.shared_experts),
              "Width of shared experts, in experts: a feed-forward that all tokens use too.")
          .between(0, 65536)
          .alias({"n_shared_experts"})
          .derived(by_family(&FamilyDefaults::shared_experts, 0),
                   [](Recipe& r) { r.model.moe.shared_experts = r.model.family->defaults.shared_experts; }));
  add(truth("model.moe.shared_expert_gate", LT_MEMBER(model.moe.shared_expert_gate),
            "Multiplies the output of shared experts by the sigmoid of a projection to one number.")
          .when("model.moe.shared_experts above 0", true,
                [](const Recipe& r) { return is_moe(r) && r.model.moe.shared_experts > 0; }));
  add_router_keys(t);
  add_capacity_keys(t);
}

}  // namespace ltrain::recipe
