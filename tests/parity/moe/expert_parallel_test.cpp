// MoE models: experts cut over ranks against one process, and the identities that an MoE model has.
#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/mutant_group.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions switch_moe() {
  TinyOptions o = tiny_moe();
  o.moe.balance = BalanceLoss::switch_loss;
  o.moe.balance_coeff = 0.1;
  o.micro_batch = 8;
  o.seq = 12;
  return o;
}

struct ExpertLayout {
  const char* name;
  int data, expert, zero = 0, tensor = 1;
  bool sequence = false, expert_tensor = true;
  int context = 1, pipeline = 1;
  const char* schedule = "1f1b";
  int shard = 0;
  DispatchOptions dispatch = {};
  int near = 0;
};

TinyOptions laid_out(const TinyOptions& one, const ExpertLayout& l) {
  TinyOptions o = one;
  o.ranks = l.data;
  o.expert = l.expert;
  o.zero_stage = l.zero;
  o.tensor = l.tensor;
  o.sequence_parallel = l.sequence;
  o.expert_tensor = l.expert_tensor;
  o.context = l.context;
  o.pipeline = l.pipeline;
  o.schedule = l.schedule;
  o.shard = l.shard;
  o.dispatch = l.dispatch;
  o.intra_node_experts = l.near;
  return o;
}

double difference(const TinyResult& a, const TinyResult& b) {
  double worst = 0;
  for (size_t i = 0; i < a.experts.size(); ++i)
    for (size_t layer = 0; layer < a.experts[i].chosen.size(); ++layer)
      for (size_t e = 0; e < a.experts[i].chosen[layer].size(); ++e)
        worst = std::max(worst, std::abs(a.experts[i].chosen[layer][e] - b.experts[i].chosen[layer][e]));
  return worst;
}

}  // namespace

TEST_CASE("expert parallelism equals one process to 1e-12 in fp64", "[expert]") {
  const TinyOptions one = switch_moe();
  const TinyResult base = train_tiny(one);
  for (const ExpertLayout& l : {ExpertLayout{"data 2", 2, 1},
                                {"expert 2", 2, 2},
                                {"expert 4 of 4", 4, 4},
                                {"expert 8", 8, 8},
                                {"expert 2 of 4, ZeRO-1", 4, 2, 1},
                                {"expert 2 of 4, ZeRO-2", 4, 2, 2},
                                {"expert 2 of 4, ZeRO-3", 4, 2, 3},
                                {"expert 4 of 4, ZeRO-3", 4, 4, 3},
                                {"tensor 2", 1, 1, 0, 2},
                                {"tensor 2 with sequence, expert 2", 2, 2, 1, 2, true},
                                {"tensor 2, expert 2", 2, 2, 0, 2},
                                {"experts over tensor 2", 1, 2, 0, 2, true, false},
                                {"experts over tensor 2 and data 2", 2, 4, 3, 2, true, false},
                                {"context 2", 1, 1, 0, 1, false, true, 2},
                                {"experts over context 2 and data", 2, 4, 1, 1, false, true, 2},
                                {"experts over context 2", 1, 2, 0, 1, false, true, 2},
                                {"two levels of 2, expert 2", 4, 2, 0, 1, false, true, 1, 1, "1f1b", 2},
                                {"hybrid ZeRO-3 of 2, expert 2", 4, 2, 3, 1, false, true, 1, 1, "1f1b", 2}}) {
    INFO(l.name);
    TinyOptions many = laid_out(one, l);
    many.micro_batch = one.micro_batch / l.data;  // the Switch loss is of micro-batches
    const TinyResult result = train_tiny(many);
    require_parity(base, result, 1e-12);
    CHECK(difference(base, result) == 0);
    CHECK(std::abs(base.balance_losses[0] - result.balance_losses[0]) <= 1e-12 * base.balance_losses[0]);
    CHECK(result.plan_bytes == result.used_bytes);  // worst case of received rows
    if (l.expert > 1) CHECK(result.used_groups.at("expert") > 0);
  }
}

TEST_CASE("all-to-all on two levels is that on one, bit for bit", "[expert]") {
  TinyOptions one = switch_moe();
  one.precision = GENERATE("fp64", "bf16");
  one.moe.capacity_factor = GENERATE(std::optional<double>(), std::optional<double>(1.0));
  for (const ExpertLayout& flat : {ExpertLayout{"expert 4", 4, 4},
                                   {"expert 4 of 8, ZeRO-3", 8, 4, 3},
                                   {"expert 8, tensor 2", 8, 8, 0, 2},
                                   {"experts over tensor 2 and data 4", 4, 8, 0, 2, true, false},
                                   {"experts over context 2 and data 4", 4, 8, 1, 1, false, true, 2}}) {
    TinyOptions flat_job = laid_out(one, flat);
    flat_job.micro_batch = one.micro_batch / flat.data;
    const TinyResult a = train_tiny(flat_job);
    for (const int near : {2, 4}) {
      if (near == flat.expert) continue;
      INFO(flat.name << ", neighbours of " << near << ", " << one.precision);
      TinyOptions job = flat_job;
      job.intra_node_experts = near;
      const TinyResult b = train_tiny(job);
      check_same_bits(a, b);
      CHECK(b.plan_bytes == b.used_bytes);
      CHECK(b.used_groups.at("expert intra-node") > 0);
      CHECK(b.used_groups.at("expert inter-node") > 0);
    }
  }
}

TEST_CASE("gathered tokens, and parts of a micro-batch on their way, train as one process does", "[expert]") {
  TinyOptions one = switch_moe();
  one.moe.shared_experts = 1;
  DispatchOptions gather, two, three;
  gather.gather = true, two.chunks = 2, three.chunks = 3;
  const TinyResult base = train_tiny(one);
  for (const ExpertLayout& l :
       {ExpertLayout{"gather, expert 2", 2, 2, 0, 1, false, true, 1, 1, "1f1b", 0, gather},
        {"gather, expert 4 of 8, ZeRO-2", 8, 4, 2, 1, false, true, 1, 1, "1f1b", 0, gather},
        {"gather, expert 2, tensor 2", 2, 2, 1, 2, false, true, 1, 1, "1f1b", 0, gather},
        {"gather, experts over tensor 2 and data 2", 2, 4, 3, 2, true, false, 1, 1, "1f1b", 0, gather},
        {"gather, experts over context 2", 1, 2, 0, 1, false, true, 2, 1, "1f1b", 0, gather},
        {"two parts, expert 4", 4, 4, 1, 1, false, true, 1, 1, "1f1b", 0, two},
        {"three parts, expert 2, tensor 2", 2, 2, 0, 2, true, true, 1, 1, "1f1b", 0, three},
        {"two parts, two levels", 4, 4, 3, 1, false, true, 1, 1, "1f1b", 0, two, 2}}) {
    INFO(l.name);
    TinyOptions many = laid_out(one, l);
    many.micro_batch = one.micro_batch / l.data;
    const TinyResult result = train_tiny(many);
    require_parity(base, result, 1e-12);
    CHECK(difference(base, result) == 0);
    CHECK(result.plan_bytes == result.used_bytes);
  }
}

TEST_CASE(
    "gathered tokens with a capacity drop as the all-to-all does, also pipelines with deferred gradients",
    "[expert]") {
  TinyOptions one = switch_moe();
  one.moe.capacity_factor = 0.75;
  DispatchOptions gather, two;
  gather.gather = true, two.chunks = 2;
  TinyOptions flat = laid_out(one, {"expert 4", 4, 4});
  flat.micro_batch = 2;
  const TinyResult base = train_tiny(flat);
  CHECK(total(base.experts[0].kept[0]) < total(base.experts[0].chosen[0]));
  for (const DispatchOptions& way : {gather, two}) {
    TinyOptions other = flat;
    other.dispatch = way;
    require_parity(base, train_tiny(other), 1e-12);
  }
  one.moe.capacity_factor.reset();
  one.micro_batch = 2;
  one.layers = 4;
  const TinyResult whole = train_tiny(one);
  for (const DispatchOptions& way : {gather, two}) {
    TinyOptions staged = laid_out(one, {"zb-h1", 2, 2, 1, 1, false, true, 1, 2, "zb-h1"});
    staged.micro_batch = 1;
    staged.dispatch = way;
    require_parity(whole, train_tiny(staged), 1e-12);
  }
}

TEST_CASE("replicas of hot experts train as one process does, and between two ranks move fewer bytes",
          "[expert]") {
  TinyOptions one = switch_moe();
  one.moe.num_experts = 4;
  one.moe.top_k = 1;
  one.moe.balance = BalanceLoss::none;
  one.moe.intermediate_size = 8;  // weights of 384 elements, less than 24 rows of 16 there and back
  TinyHooks hooks;
  const bool crowd = GENERATE(true, false);
  if (crowd) hooks.begin = crowded;
  DispatchOptions parts, gather;
  parts.chunks = 3, gather.gather = true;
  const TinyResult base = train_tiny(one, {}, hooks);
  for (const ExpertLayout& l :
       {ExpertLayout{"expert 2", 2, 2},
        {"expert 4, ZeRO-1", 4, 4, 1},
        {"expert 2 of 4, ZeRO-3", 4, 2, 3},
        {"expert 2, tensor 2", 2, 2, 1, 2},
        {"expert 4, 1f1b", 4, 4, 2, 1, false, true, 1, 2},
        {"experts over context 2", 1, 2, 0, 1, false, true, 2},
        {"experts over tensor 2", 1, 2, 0, 2, true, false},
        {"experts over tensor 2 and data 2, ZeRO-3", 2, 4, 3, 2, true, false},
        {"in parts, expert 2", 2, 2, 1, 1, false, true, 1, 1, "1f1b", 0, parts},
        {"in parts, two levels", 4, 4, 0, 1, false, true, 1, 1, "1f1b", 0, parts, 2},
        {"in parts, expert 2, 1f1b", 2, 2, 2, 1, false, true, 1, 2, "1f1b", 0, parts},
        {"gathered, expert 2", 2, 2, 0, 1, false, true, 1, 1, "1f1b", 0, gather},
        {"gathered, expert 4, ZeRO-1", 4, 4, 1, 1, false, true, 1, 1, "1f1b", 0, gather},
        {"gathered, expert 2, tensor 2", 2, 2, 1, 2, false, true, 1, 1, "1f1b", 0, gather},
        {"gathered over context 2", 1, 2, 0, 1, false, true, 2, 1, "1f1b", 0, gather},
        {"gathered over tensor 2", 1, 2, 0, 2, true, false, 1, 1, "1f1b", 0, gather},
        {"gathered over tensor 2 and data 2, ZeRO-3", 2, 4, 3, 2, true, false, 1, 1, "1f1b", 0, gather}}) {
    INFO(l.name << (crowd ? ", all tokens to one expert" : ""));
    TinyOptions many = laid_out(one, l);
    many.micro_batch = one.micro_batch / l.data;
    if (crowd && l.zero < 3) many.zero_stage = 0;  // crowded() writes what a step reads at once
    const int64_t without = train_tiny(many, {}, hooks).used_groups.at("expert");
    many.dispatch.replicas = 2;
    const TinyResult result = train_tiny(many, {}, hooks);
    require_parity(base, result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
    if (l.dispatch.gather) {  // whose tokens travel all the same
      CHECK(result.used_groups.at("expert") >= without);
      if (crowd) CHECK(result.used_groups.at("expert") > without);
      continue;
    }
    // Bytes over a rank's link; with two ranks these are all bytes.
    if (l.expert == 2 && l.zero == 0) CHECK(result.used_groups.at("expert") <= without);
    if (l.expert == 2 && crowd) CHECK(result.used_groups.at("expert") < without);
  }
}

TEST_CASE("replicas of hot experts under schedules that leave gradients for later", "[expert]") {
  TinyOptions one = switch_moe();
  one.moe.num_experts = 4;
  one.moe.top_k = 1;
  one.moe.balance = BalanceLoss::none;
  one.moe.intermediate_size = 8;
  one.moe.shared_experts = 1;
  one.layers = 4;
  one.global_batch = 64;
  const TinyResult base = train_tiny(one);
  for (const auto& [schedule, stages, chunks] :
       {std::tuple{"zb-h1", 2, 1}, {"zb-h2", 2, 1}, {"zbv", 2, 2}, {"dualpipev", 2, 2}})
    for (const int zero : {0, 2, 3}) {
      INFO(schedule << ", ZeRO " << zero);
      TinyOptions many = one;
      many.ranks = many.expert = 2;
      many.pipeline = stages, many.schedule = schedule, many.chunks = chunks, many.zero_stage = zero;
      TinyOptions without = many;
      many.dispatch.replicas = 2;
      const TinyResult result = train_tiny(many);
      require_parity(base, result, 1e-12);
      CHECK(result.plan_bytes == result.used_bytes);
      CHECK(result.used_groups.at("expert") !=
            train_tiny(without).used_groups.at("expert"));  // there are some
    }
}

TEST_CASE("experts of pipelines, and every loss for balance, under every layout", "[expert]") {
  TinyOptions one = switch_moe();
  one.micro_batch = 2;
  one.layers = 4;
  one.moe.score = GENERATE(RouterScore::softmax, RouterScore::sigmoid);
  one.moe.balance = one.moe.score == RouterScore::softmax ? BalanceLoss::global : BalanceLoss::sequence;
  one.moe.shared_experts = 1;
  one.moe.shared_expert_gate = true;
  const TinyResult base = train_tiny(one);
  for (const ExpertLayout& l : {ExpertLayout{"expert 2", 2, 2},
                                {"1f1b", 1, 1, 0, 1, false, true, 1, 2},
                                {"zb-h1, expert 2, ZeRO-1", 2, 2, 1, 1, false, true, 1, 2, "zb-h1"},
                                {"context 2, expert 2", 1, 2, 0, 1, false, true, 2}}) {
    INFO(to_string(one.moe.balance) << ", " << l.name);
    TinyOptions many = laid_out(one, l);
    many.micro_batch = one.micro_batch / l.data;
    require_parity(base, train_tiny(many), 1e-12);
  }
}

TEST_CASE("transformers' loss over all layers, under every layout without pipelines", "[expert]") {
  TinyOptions one = switch_moe();
  one.micro_batch = 2;
  one.layers = 3;
  one.moe.dense_layers = {0};
  one.moe.balance = BalanceLoss::hf;
  one.moe.balance_coeff = 0.3;
  const TinyResult base = train_tiny(one);
  REQUIRE(base.balance_losses.at(0) > 0.3 * static_cast<double>(one.moe.top_k));
  for (const ExpertLayout& l : {ExpertLayout{"data 2", 2, 1},
                                {"expert 2", 2, 2},
                                {"expert 2, ZeRO-2", 2, 2, 2},
                                {"tensor 2", 1, 1, 0, 2},
                                {"context 2, expert 2", 1, 2, 0, 1, false, true, 2}}) {
    INFO(l.name);
    TinyOptions many = laid_out(one, l);
    many.micro_batch = one.micro_batch / l.data;
    require_parity(base, train_tiny(many), 1e-12);
  }
  TinyOptions other = one;  // negative control: layer by layer it is another loss
  other.moe.balance = BalanceLoss::switch_loss;
  other.moe.balance_coeff = 0.3 * static_cast<double>(one.moe.top_k);
  CHECK(std::abs(train_tiny(other).balance_losses.at(0) - base.balance_losses.at(0)) > 1e-6);
}

TEST_CASE("every way to choose and to balance, under every layout", "[expert]") {
  TinyOptions one = switch_moe();
  one.moe.balance = BalanceLoss::none;
  const int way = GENERATE(0, 1, 2, 3, 4, 5, 6);
  switch (way) {
    case 0:  // Switch
      one.moe.top_k = 1;
      one.moe.norm_topk_prob = false;
      one.moe.jitter_eps = 0.2;
      one.moe.balance = BalanceLoss::switch_loss;
      break;
    case 1:
      one.moe.selection = Selection::gshard_top2;
      one.moe.second_threshold = 0.7;
      one.moe.balance = BalanceLoss::global;
      break;
    case 2:  // DeepSeek-V3
      one.moe.score = RouterScore::sigmoid;
      one.moe.n_group = 4;
      one.moe.topk_group = 2;
      one.moe.routed_scaling_factor = 2.5;
      one.moe.bias_update_rate = 0.05;
      one.moe.balance = BalanceLoss::sequence;
      one.moe.shared_experts = 1;
      break;
    case 3:
      one.moe.selection = Selection::expert_choice;
      one.moe.norm_topk_prob = false;
      break;
    case 4:  // one to three experts a token
      one.moe.selection = Selection::top_p;
      one.moe.top_k = 3;
      one.moe.top_p = 0.4;
      one.moe.norm_topk_prob = false;
      one.moe.balance = BalanceLoss::switch_loss;
      one.moe.entropy_coeff = 0.1;
      break;
    case 5:  // LongCat-Flash
      one.moe.zero_experts = 4;
      one.moe.top_k = 3;
      one.moe.norm_topk_prob = false;
      one.moe.routed_scaling_factor = 1.5;
      one.moe.bias_update_rate = 0.05;
      one.moe.experts_per_token = 1.75;
      one.moe.balance = BalanceLoss::global;
      break;
    case 6:  // zero experts among those of a sum of scores, with a capacity
      one.moe.zero_experts = 3;
      one.moe.score = RouterScore::sigmoid;
      one.moe.selection = Selection::top_p;
      one.moe.top_k = 4;
      one.moe.top_p = 0.5;
      one.moe.bias_update_rate = 0.05;
      one.moe.capacity_factor = 1.0;
      one.moe.entropy_coeff = 0.1;
      one.moe.shared_experts = 1;
  }
  one.micro_batch = 2;  // experts choose from the micro-batch of a rank
  one.steps = 3;
  one.layers = 4;
  one.packed = way == 0;
  DispatchOptions gather, two, copies;
  gather.gather = true, two.chunks = 2, copies.replicas = 2;
  const TinyResult base = train_tiny(one);
  for (const ExpertLayout& l : {ExpertLayout{"expert 4", 4, 4, 1},
                                {"expert 2 of 4, ZeRO-3", 4, 2, 3},
                                {"tensor 2 with sequence, expert 2", 2, 2, 1, 2, true},
                                {"tensor 2, expert 2", 2, 2, 0, 2},
                                {"experts over tensor 2 and data 2", 2, 4, 3, 2, true, false},
                                {"experts over context 2 and data", 2, 4, 1, 1, false, true, 2},
                                {"zb-h1, expert 2, ZeRO-1", 2, 2, 1, 1, false, true, 1, 2, "zb-h1"},
                                {"1f1b, tensor 2", 1, 1, 0, 2, true, true, 1, 2},
                                {"gather, expert 2", 2, 2, 0, 1, false, true, 1, 1, "1f1b", 0, gather},
                                {"two parts, expert 2", 2, 2, 1, 1, false, true, 1, 1, "1f1b", 0, two},
                                {"copies, expert 2", 2, 2, 1, 1, false, true, 1, 1, "1f1b", 0, copies},
                                {"two levels, expert 4", 4, 4, 1, 1, false, true, 1, 1, "1f1b", 0, {}, 2}}) {
    if (way == 2 && !l.expert_tensor) continue;  // sequences are cut there
    INFO("way " << way << ", " << l.name);
    TinyOptions many = laid_out(one, l);
    // Losses for balance are of the micro-batch over all ranks, experts choose from that of one.
    const bool by_rank = way == 3 || way == 6;  // and a capacity is of that of one
    if (!by_rank && l.data > 2) continue;
    many.micro_batch = by_rank ? 2 : one.micro_batch / l.data;
    const TinyResult result = train_tiny(many);
    require_parity(base, result, 1e-12);
    CHECK(difference(base, result) == 0);
    CHECK(result.plan_bytes == result.used_bytes);
  }
}

TEST_CASE("biases move by the choices of all ranks, and another rate chooses otherwise", "[expert]") {
  TinyOptions one = switch_moe();
  one.moe.bias_update_rate = 0.2;
  one.moe.balance = BalanceLoss::none;
  one.steps = 3;
  TinyOptions many = laid_out(one, {"expert 2 of 4", 4, 2});
  many.micro_batch = 2;
  const TinyResult base = train_tiny(one);
  CHECK(difference(base, train_tiny(many)) == 0);
  TinyOptions apart = laid_out(one, {"experts over tensor 2 and data 2", 2, 4, 1, 2, true, false});
  apart.micro_batch = 4;
  CHECK(difference(base, train_tiny(apart)) == 0);
  many.moe.bias_update_rate = 0.1;
  CHECK(difference(base, train_tiny(many)) > 0);
}

TEST_CASE("norms over heads that tensor ranks share (olmoe) equal one process", "[expert]") {
  TinyOptions one = switch_moe();
  one.architecture = "olmoe";
  one.moe.norm_topk_prob = false;
  one.heads = 4;
  one.kv_heads = GENERATE(4, 2);
  const TinyResult base = train_tiny(one);
  for (const ExpertLayout& l : {ExpertLayout{"tensor 2", 1, 1, 0, 2},
                                {"tensor 4", 1, 1, 0, 4},
                                {"tensor 4 with sequence, ZeRO-3, expert 2", 2, 2, 3, 4, true},
                                {"experts over tensor 2 and data 2", 2, 4, 1, 2, true, false},
                                {"context 2, tensor 2", 1, 1, 0, 2, false, true, 2},
                                {"zb-h1, tensor 2", 1, 1, 0, 2, false, true, 1, 2, "zb-h1"}}) {
    INFO(one.kv_heads << " key-value heads, " << l.name);
    TinyOptions many = laid_out(one, l);
    many.micro_batch = one.micro_batch / l.data;
    const TinyResult result = train_tiny(many);
    require_parity(base, result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
  }
  TinyOptions many = laid_out(one, {"tensor 2", 1, 1, 0, 2});
  CHECK_FALSE(train_tiny(many).plan_wire[0] ==
              train_tiny(laid_out(switch_moe(), {"tensor 2", 1, 1, 0, 2})).plan_wire[0]);
}

TEST_CASE("frozen and warming routers under every layout", "[expert]") {
  TinyOptions one = switch_moe();
  one.steps = 3;
  if (GENERATE(false, true))
    one.optimizer.freeze_routers = true;
  else
    one.optimizer.router_warmup = 1;
  const TinyResult base = train_tiny(one);
  for (const ExpertLayout& l : {ExpertLayout{"expert 2 of 4, ZeRO-1", 4, 2, 1},
                                {"expert 4 of 4, ZeRO-3", 4, 4, 3},
                                {"tensor 2 with sequence, expert 2", 2, 2, 2, 2, true},
                                {"experts over tensor 2 and data 2", 2, 4, 3, 2, true, false},
                                {"two levels of 2, expert 2", 4, 2, 0, 1, false, true, 1, 1, "1f1b", 2}}) {
    INFO(l.name);
    TinyOptions many = laid_out(one, l);
    many.micro_batch = one.micro_batch / l.data;
    const TinyResult result = train_tiny(many);
    require_parity(base, result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
  }
}

TEST_CASE("ranks without a token and ranks with all of them train as one process does", "[expert]") {
  TinyOptions one = switch_moe();
  one.moe.top_k = 1;
  one.moe.num_experts = 4;
  one.moe.balance = BalanceLoss::none;
  TinyHooks hooks;
  hooks.begin = crowded;
  one.steps = 3;
  const TinyResult base = train_tiny(one, {}, hooks);
  CHECK(base.experts[0].chosen[0] == std::vector<double>{96, 0, 0, 0});
  TinyOptions many = laid_out(one, {"expert 4", 4, 4});
  many.micro_batch = 2;
  require_parity(base, train_tiny(many, {}, hooks), 1e-12);
}

TEST_CASE("negative control: gradients of experts that are not reduced are seen", "[expert]") {
  const TinyOptions one = switch_moe();
  TinyOptions many = laid_out(one, {"expert 2 of 4", 4, 2});
  many.micro_batch = 2;
  const TinyResult base = train_tiny(one);
  const TinyResult bad = train_tiny(many, [](const GroupRequest& r, std::unique_ptr<Communicator> inner) {
    return std::make_unique<MutantGroup>(std::move(inner), Mutation::remove,
                                         r.name == "expert shard" ? 0 : -1);
  });
  CHECK(worst_relative(base.parameters, bad.parameters) > 1e-6);
}
