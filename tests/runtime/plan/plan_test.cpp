// Plans: what they say of communication against ZeRO's closed forms, their JSON and trace, refused
// placements.
#include "base/bytes_text.h"
#include "base/json/json.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/plan_print.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "base/fault_point.h"
#include "parallel/comm/collective_bytes.h"
#include "parallel/comm/communicator_gloo.h"
#include "parallel/shm/communicator_shm.h"
#include "runtime/plan/rank_map.h"
#include "tests/runtime/plan/tiny_recipe.h"

using namespace ltrain;
using Catch::Contains;
using nlohmann::json;
using test::tiny_recipe;

namespace {

Plan plan_of(const Recipe& r) { return make_plan(r, builtin_profile(2)); }

const CollectivePlan* find(const RankPlan& r, const std::string& op) {
  for (const CollectivePlan& c : r.collectives)
    if (c.op == op) return &c;
  return nullptr;
}

std::set<std::string> keys(const json& j) {
  std::set<std::string> out;
  for (const auto& [k, v] : j.items()) out.insert(k);
  return out;
}

}  // namespace

TEST_CASE("planned collectives are ZeRO's closed forms", "[plan]") {
  const std::string precision = GENERATE(as<std::string>(), "fp32", "bf16");
  const int64_t param = precision == "bf16" ? 2 : 4, grad = 4;
  for (int n : {2, 3, 4, 8})
    for (int stage : {0, 1}) {
      const Plan plan =
          plan_of(tiny_recipe(n, {"precision=" + precision, "parallel.zero_stage=" + std::to_string(stage)}));
      INFO(precision << ", " << n << " ranks, ZeRO " << stage);
      REQUIRE(plan.ranks.size() == 2);  // first and last
      // Two small sums: the token count (1 x i64), and loss, stop requests, news, and squares of gradients
      // for embedding, three layers and head (f64 each).
      for (const RankPlan& r : plan.ranks) {
        const int64_t sums = 8 * (3 + 3 + 2), small = 8 + sums;
        int64_t sent = collective_wire_bytes(CollectiveOp::all_reduce, 8, n, r.rank, 8) +
                       collective_wire_bytes(CollectiveOp::all_reduce, sums, n, r.rank, 8);
        const CollectivePlan* all_reduce = find(r, "all_reduce");
        REQUIRE(all_reduce);
        CHECK(all_reduce->axis == "data");
        int64_t elements = 0;
        if (stage == 0) {
          CHECK(r.collectives.size() == 1);
          elements = (all_reduce->bytes - small) / grad;
          sent += 2 * (n - 1) * elements * grad / n;
          CHECK(all_reduce->calls >= 3);
        } else {
          CHECK(r.collectives.size() == 3);
          const CollectivePlan *scatter = find(r, "reduce_scatter"), *gather = find(r, "all_gather");
          REQUIRE((scatter && gather));
          elements = scatter->bytes / grad;
          CHECK(gather->bytes == elements * param);
          CHECK(gather->calls == scatter->calls);
          CHECK(all_reduce->bytes == small);
          CHECK(all_reduce->calls == 2);
          CHECK(scatter->wire_bytes == (n - 1) * elements * grad / n);
          CHECK(gather->wire_bytes == (n - 1) * elements * param / n);
          sent += scatter->wire_bytes + gather->wire_bytes;
        }
        CHECK(r.train_wire_bytes == sent);
        // All parameters take part, once, and less than a percent of padding with them.
        CHECK(elements % n == 0);
        CHECK(elements >= plan.parameters);
        CHECK(static_cast<double>(elements) < 1.01 * static_cast<double>(plan.parameters));
      }
    }
  CHECK(plan_of(tiny_recipe(1)).ranks.at(0).train_wire_bytes == 0);
}

TEST_CASE("accumulation does not send more, ZeRO-1 keeps an n-th of the optimizer's state", "[plan]") {
  const RankPlan few = plan_of(tiny_recipe(2, {"train.micro_batch_size=12"})).ranks[0];
  const RankPlan many = plan_of(tiny_recipe(2)).ranks[0];
  CHECK(few.train_wire_bytes == many.train_wire_bytes);
  CHECK(few.model_flops == many.model_flops);
  const auto optimizer = [](const Plan& p) {
    return p.ranks[0].arena.by_kind[static_cast<int>(MemoryKind::optimizer)];
  };
  const int64_t whole = optimizer(plan_of(tiny_recipe(4))),
                cut = optimizer(plan_of(tiny_recipe(4, {"parallel.zero_stage=1"})));
  CHECK(whole == 4 * cut);
  CHECK(whole >= 8 * plan_of(tiny_recipe(4)).parameters);
}

TEST_CASE("a plan's totals: matmul operations, evaluations, time", "[plan]") {
  const Recipe r = tiny_recipe(1, {"train.eval_interval=30", "train.eval_steps=2", "data.eval=[{path: x}]"});
  const Plan p = plan_of(r);
  CHECK(p.evaluations == 4);  // steps 30, 60, 90 and the last
  CHECK(p.total_seconds() == Approx(100 * p.step_seconds() + 4 * p.ranks[0].eval_seconds));
  CHECK(p.ranks[0].eval_seconds > 0);
  CHECK(plan_of(tiny_recipe(1)).evaluations == 0);
}

TEST_CASE("model FLOPs are those of the published formula, whatever the layout and what is recomputed",
          "[plan]") {
  // 6 a token and matmul weight (PaLM, appendix B); attention 12 a token, channel and key that is seen:
  // (s + 1) / 2 of them under a causal mask.
  const std::string vocabulary = "model.vocab_size=260";  // tensor ranks pad no rows of it
  const Recipe one = tiny_recipe(1, {vocabulary});
  const Plan p = plan_of(one);
  const ModelConfig& m = one.model;
  const double tokens = static_cast<double>(p.tokens_per_step), embedding = 260 * 48,
               norms = static_cast<double>(2 * m.num_hidden_layers + 1) * 48;
  const double matmul = 6 * tokens * (static_cast<double>(p.parameters) - embedding - norms);
  const double attention = 12 * tokens *
                           static_cast<double>(m.num_hidden_layers * m.num_attention_heads * m.head_dim) *
                           static_cast<double>(one.data.seq_length + 1) / 2;
  CHECK(p.ranks[0].model_flops == Approx(matmul + attention).epsilon(1e-12));
  CHECK(p.mfu() == Approx(p.ranks[0].model_flops / (p.step_seconds() * p.peak_flops)));
  const auto of_job = [](const Plan& plan) {
    double sum = 0;
    for (int i = 0; i < plan.stages; ++i) sum += plan.ranks[static_cast<size_t>(i)].model_flops;
    return sum / plan.stages * plan.world;
  };
  const std::vector<std::pair<int, std::vector<std::string>>> same{
      {1, {"recompute.granularity=full"}},
      {1, {"optimizer.kind=muon"}},
      {2, {}},
      {2, {"parallel.zero_stage=3"}},
      {2, {"parallel.tensor=2"}},
      {2, {"parallel.pipeline=2"}},
      {2, {"parallel.context=2"}},
      {4, {"parallel.tensor=2", "parallel.pipeline=2"}}};
  for (auto [ranks, overrides] : same) {
    overrides.push_back(vocabulary);
    const Plan plan = plan_of(tiny_recipe(ranks, overrides));
    INFO(ranks << " ranks, " << overrides[0]);
    CHECK(of_job(plan) == Approx(matmul + attention).epsilon(1e-12));
    CHECK(plan.mfu() == Approx((matmul + attention) / (plan.world * plan.step_seconds() * plan.peak_flops)));
  }
}

TEST_CASE("plan.json: its keys, and sums that add up", "[plan]") {
  const json j = json::parse(plan_json(plan_of(tiny_recipe(2, {"parallel.zero_stage=1"}))));
  CHECK(keys(j) == std::set<std::string>{"schema",
                                         "recipe",
                                         "device",
                                         "world",
                                         "threads_per_rank",
                                         "parameters",
                                         "tokens_per_step",
                                         "micro_batches",
                                         "train_steps",
                                         "evaluations",
                                         "profile",
                                         "profile_measured",
                                         "profile_built_in",
                                         "network_bytes_per_second",
                                         "network_given",
                                         "network_source",
                                         "peak_flops",
                                         "host_memory_bytes",
                                         "fits",
                                         "memory_limits",
                                         "step_seconds",
                                         "tokens_per_second",
                                         "expert_skew",
                                         "mfu",
                                         "total_seconds",
                                         "total_tokens",
                                         "placement_ops_checked",
                                         "ranks"});
  CHECK(j["schema"] == "ltrain.plan.v1");
  CHECK(j["world"] == 2);
  CHECK(j["micro_batches"] == 12);
  CHECK(j["total_tokens"] == 100 * 24 * 32);
  CHECK(j["placement_ops_checked"].get<int>() > 100);
  REQUIRE(j["ranks"].size() == 2);
  for (const json& r : j["ranks"]) {
    CHECK(keys(r) == std::set<std::string>{"rank", "memory_bytes", "communication", "wire_bytes_per_step",
                                           "wire_bytes_per_eval", "model_flops_per_step", "step_seconds",
                                           "exposed_comm_seconds", "exposed_comm_seconds_by_axis",
                                           "eval_seconds", "ops"});
    int64_t total = r["memory_bytes"]["arena"]["total"].get<int64_t>(), parts = 0, sent = 0;
    for (const auto& [kind, bytes] : r["memory_bytes"]["arena"].items())
      if (kind != "total") parts += bytes.get<int64_t>();
    CHECK(parts == total);
    for (const json& o : r["memory_bytes"]["outside"]) {
      CHECK(keys(o) == std::set<std::string>{"name", "bytes", "source", "of"});
      total += o["bytes"].get<int64_t>();
    }
    CHECK(r["memory_bytes"]["total"] == total);
    for (const json& c : r["communication"]) {
      CHECK(keys(c) == std::set<std::string>{"axis", "group", "collective", "calls", "bytes", "wire_bytes",
                                             "network_bytes", "seconds"});
      sent += c["wire_bytes"].get<int64_t>();
    }
    CHECK(r["wire_bytes_per_step"] == sent);
    for (const json& o : r["ops"])
      CHECK(keys(o) == std::set<std::string>{"name", "calls", "flops", "bytes", "seconds"});
  }
}

TEST_CASE("groups' memory is the transport's, to the byte", "[plan]") {
  struct Restore {
    ~Restore() { ::unsetenv("LTRAIN_TRANSPORT"); }
  } restore;
  const auto bytes = [](Recipe r, int ranks_on_host, const std::string& name) {
    r.launch.ranks_on_host = ranks_on_host;
    const Plan plan = plan_of(r);
    int64_t sum = 0, others = 0;
    for (const ExternalMemory& o : plan.ranks.at(0).outside) {
      if (o.name == name) sum += o.bytes;
      if (o.name == "shared memory of groups" || o.name == "gloo parts in flight") others += o.name != name;
    }
    CHECK(others == 0);
    return sum;
  };
  // The gradients' group and, where it is of one host, the checkpoints': over several that is a tree, which
  // holds nothing between calls.
  ::setenv("LTRAIN_TRANSPORT", "auto", 1);
  for (int n : {2, 4}) {
    CHECK(bytes(tiny_recipe(n), n, "shared memory of groups") == 2 * shm_segment_bytes(n));
    CHECK(bytes(tiny_recipe(n), n / 2, "gloo parts in flight") == gloo_scratch_bytes(n));  // on two hosts
  }
  ::setenv("LTRAIN_TRANSPORT", "gloo", 1);
  CHECK(bytes(tiny_recipe(2), 2, "gloo parts in flight") == gloo_scratch_bytes(2));
  CHECK(bytes(tiny_recipe(1), 1, "gloo parts in flight") == 0);
}

TEST_CASE("a plan's trace is a Chrome trace: valid JSON, events of a stream do not overlap", "[plan]") {
  const json j = json::parse(plan_trace(tiny_recipe(2), builtin_profile(2), 1));
  CHECK(j["displayTimeUnit"] == "ms");
  CHECK(j["distributedInfo"] == json({{"rank", 1}, {"world_size", 2}}));
  std::map<int, std::string> names;
  std::map<std::string, double> end;
  int events = 0, collectives = 0;
  for (const json& e : j["traceEvents"]) {
    CHECK(e["pid"] == 1);
    if (e["name"] == "thread_name") names[e["tid"]] = e["args"]["name"];
    if (e["ph"] == "M") continue;
    ++events;
    REQUIRE(e["ph"] == "X");
    for (const char* key : {"name", "cat", "ts", "dur", "tid", "args"}) CHECK(e.contains(key));
    REQUIRE(names.count(e["tid"]));
    const std::string stream = names[e["tid"]];
    CHECK(e["dur"].get<double>() >= 0);
    CHECK(e["ts"].get<double>() >= end[stream] - 0.01);  // microseconds, three digits
    end[stream] = e["ts"].get<double>() + e["dur"].get<double>();
    collectives += e["cat"] == "collective";
  }
  CHECK(events > 100);
  CHECK(collectives >= 3);
  CHECK(end.count("comm") == 1);
}

TEST_CASE("a missing reduction is refused by the plan, with the op and the fix", "[plan]") {
  struct Disarm {
    ~Disarm() { arm_faults(""); }
  } disarm;
  for (int stage : {0, 1}) {
    const Recipe r = tiny_recipe(2, {"parallel.zero_stage=" + std::to_string(stage)});
    int calls = 0;
    const Plan whole = plan_of(r);
    for (const CollectivePlan& c : whole.ranks[0].collectives) calls += static_cast<int>(c.calls);
    REQUIRE(calls >= 3);
    for (int call = 1; call <= calls; ++call) {
      arm_faults("collective.enter:*:" + std::to_string(call) + ":skip");
      INFO("ZeRO " << stage << ", without collective " << call);
      try {
        plan_of(r);
        FAIL("the plan was made");
      } catch (const Error& e) {
        CHECK(e.code() == ExitCode::internal);
        CHECK_THAT(e.what(), Contains("placement error: ") && Contains("axis data") && Contains("fix: "));
      }
    }
    arm_faults("");
    CHECK_NOTHROW(plan_of(r));
  }
}

TEST_CASE("memory beyond the host is refused with the itemised sum, just enough is not", "[plan]") {
  Plan p = plan_of(tiny_recipe(2));
  const int64_t need = p.ranks[0].total_bytes;
  p.host_bytes = 2 * need;
  p.ranks_on_host = 2;
  CHECK_NOTHROW(check_memory(p));
  p.host_bytes = 2 * need - 1;
  CHECK_THROWS_WITH(check_memory(p), Contains("exceeds this host's memory: 2 ranks of") &&
                                         Contains("optimizer") && Contains("--force"));
  p.ranks_on_host = 1;
  CHECK_NOTHROW(check_memory(p));
}

TEST_CASE("a plan says whether it fits: the card it is for, and this host where it would run here",
          "[plan]") {
  const auto code_of = [](const Plan& p) {
    try {
      check_memory(p);
    } catch (const Error& e) {
      return e.code();
    }
    return ExitCode::done;
  };
  // A card that is not here: its memory alone counts.
  const Recipe gpu = tiny_recipe(2, {"device=cuda", "train.micro_batch_size=2"});
  MachineProfile elsewhere = card_profile("h100");
  Plan p = make_plan(gpu, elsewhere);
  p.host_bytes = 1;
  REQUIRE(memory_limits(p).size() == 1);
  CHECK(memory_limits(p)[0].of == DeviceKind::cuda);
  CHECK(fits(p));
  CHECK_THAT(fit_text(p), Catch::StartsWith("fits: a rank needs ") && Catch::EndsWith("a card has 74.5 GiB"));
  CHECK(code_of(p) == ExitCode::done);
  p.device_bytes = p.ranks[0].total_bytes;
  CHECK(fits(p));
  --p.device_bytes;
  CHECK_FALSE(fits(p));
  CHECK_THAT(
      fit_text(p),
      Catch::StartsWith("does not fit: a rank needs ") &&
          Contains(
              "; what would help: a smaller train.micro_batch_size (now 2), recompute.granularity: full, a "
              "higher parallel.zero_stage (now 0), more ranks (parallel.tensor, now 1, or parallel.pipeline, "
              "now 1), offload.optimizer.device: cpu, train.logits_chunk_size: 1024 (now 4096), precision: "
              "bf16, "
              "a smaller data.seq_length"));
  CHECK(code_of(p) == ExitCode::does_not_fit);
  const json j = json::parse(plan_json(p));
  CHECK(j["fits"] == false);
  CHECK(j["memory_limits"] == json::array({{{"of", "card"},
                                            {"ranks", 1},
                                            {"rank_bytes", p.ranks[0].total_bytes},
                                            {"needed_bytes", p.ranks[0].total_bytes},
                                            {"available_bytes", p.ranks[0].total_bytes - 1},
                                            {"fits", false}}}));
  const std::string text = plan_text(p, gpu);
  CHECK(text.substr(text.rfind('\n', text.size() - 2) + 1) == fit_text(p) + "\n");
  CHECK_THAT(text, !Contains("this host has"));
  // The card of this machine: its hosts are like this one.
  elsewhere.of_this_machine = true;
  p = make_plan(gpu, elsewhere);
  REQUIRE(memory_limits(p).size() == 2);
  p.host_bytes = 2 * p.ranks[0].host_bytes - 1;
  CHECK_FALSE(fits(p));
  CHECK_THAT(fit_text(p), Catch::StartsWith("does not fit: 2 ranks of ") && Contains(", this host has "));
  // Settings that the recipe has already are not named.
  const Recipe lean =
      tiny_recipe(2, {"precision=bf16", "recompute.granularity=full", "parallel.zero_stage=3"});
  CHECK(smaller_settings(lean) ==
        std::vector<std::string>{"more ranks (parallel.tensor, now 1, or parallel.pipeline, now 1)",
                                 "offload.optimizer.device: nvme", "fewer ranks a host",
                                 "a smaller data.seq_length or model"});
}

TEST_CASE("sizes in text have four digits before the point at most", "[plan]") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(1023) == "1023 B");
  CHECK(bytes_text(1024) == "1.0 KiB");
  CHECK(bytes_text(static_cast<int64_t>(3.2 * 1048576)) == "3.2 MiB");
  CHECK(bytes_text(static_cast<int64_t>(209.0 * 1073741824)) == "209.0 GiB");
  CHECK(bytes_text(static_cast<int64_t>(9999.9 * 1073741824)) == "9999.9 GiB");
  CHECK(bytes_text(static_cast<int64_t>(10240.0 * 1073741824)) == "10.0 TiB");
}

TEST_CASE("the text of a plan has the memory of the rank that takes most, and with --ranks of all",
          "[plan]") {
  const auto times = [](const std::string& text, const std::string& what) {
    int n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
  };
  const Recipe r = tiny_recipe(24, {"parallel.pipeline=3", "parallel.data=8", "model.vocab_size=4096"});
  const Plan p = plan_of(r);
  REQUIRE(p.ranks.size() == 4);  // the first of each stage, and the last
  const RankPlan* most = &p.ranks[0];
  int64_t low = INT64_MAX, high = 0;
  for (const RankPlan& rank : p.ranks)
    if (rank.total_bytes > most->total_bytes) most = &rank;
  for (const RankPlan& rank : p.ranks) {
    if (&rank == most) continue;
    low = std::min(low, rank.total_bytes);
    high = std::max(high, rank.total_bytes);
  }
  REQUIRE(low < high);
  std::vector<std::string> hosts{"a"};
  const RankMap map = map_ranks(r, hosts);
  const std::string few = plan_text(p, r, &map), all = plan_text(p, r, &map, true);
  CHECK(times(few, "memory of rank ") == 1);
  CHECK_THAT(few, Contains(fmt::format("memory of rank {}\n", most->rank)));
  const auto mib = [](int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / 1048576); };
  CHECK_THAT(few, Contains(fmt::format("\n  other ranks: {} to {} MiB, by stage with --ranks\n", mib(low),
                                       mib(high))));
  CHECK(times(few, "  cpu, 2 threads\n") == 16);
  CHECK_THAT(few, Contains("     ...  8 ranks more (--ranks lists all)\n"));
  CHECK(times(all, "memory of rank ") == 4);
  CHECK(times(all, "  cpu, 2 threads\n") == 24);
  CHECK_THAT(all, !Contains("other ranks") && !Contains("..."));
  // Ranks that take the same are not spread.
  CHECK_THAT(plan_text(plan_of(tiny_recipe(2)), tiny_recipe(2)), !Contains("other ranks"));
  // Large numbers have large units.
  const Recipe large =
      tiny_recipe(1, {"device=cuda", "model.hidden_size=4096", "model.intermediate_size=16384",
                      "model.num_attention_heads=32", "model.num_key_value_heads=8",
                      "train.global_batch_size=240", "precision=bf16"});
  const std::string text = plan_text(make_plan(large, card_profile("h100")), large);
  CHECK_THAT(text, Contains("% of 989.4 TFLOP/s, the card's peak") && Contains(" model TFLOP a rank") &&
                       Contains(" GiB  (allocated once, exactly)"));
}

TEST_CASE("what no layout makes fit is refused with its arithmetic in two lines", "[plan]") {
  const auto model = [](const std::string& layers) {
    return resolve(parse_recipe("name: large\ndevice: cuda\nprecision: fp16\n"
                                "model: {architecture: gpt2, vocab_size: 51200, hidden_size: 25600, "
                                "num_attention_heads: 160, max_position_embeddings: 2048}\n"
                                "data: {seq_length: 2048}\n"
                                "parallel: {data: 2, tensor: 8, pipeline: 16}\n"
                                "train: {micro_batch_size: 1, global_batch_size: 4}\n",
                                "large.yaml", {"model.num_hidden_layers=" + layers}),
                   256, 8);
  };
  const Recipe dense = model("208");  // 12 L H^2 parameters
  const Plan plan = make_plan(dense, card_profile("v100"));
  const double parameters = static_cast<double>(plan.parameters);
  CHECK(parameters == Approx(12.0 * 208 * 25600 * 25600 + 53248.0 * 25600).epsilon(1e-3));
  CHECK(plan.state_bytes ==
        Approx(2 + 4 + 4 + 8).epsilon(1e-3));  // weights, gradients, fp32 weights, moments
  const std::string text = impossible_text(plan);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK_THAT(text, Contains(fmt::format("at least {:.0f} are needed",
                                        std::ceil(parameters * plan.state_bytes / 32e9))) &&
                       Contains("256 cards at their peak of 125.0 TFLOP/s train at most"));
  CHECK_THAT(plan_text(plan, dense), Contains(text));
  // A model that does not fit by its activations may fit in another layout.
  const Plan smaller = make_plan(model("16"), card_profile("v100"));
  CHECK(impossible_text(smaller).empty());
}

TEST_CASE("two levels of gradients: the plan says what goes to other nodes and prices it apart", "[plan]") {
  const auto plan = [](std::vector<std::string> overrides, double network = 1.25e9, int on_host = 4) {
    overrides.insert(overrides.end(), {"parallel.data=8", "launch.ranks_per_node=4"});
    MachineProfile profile = builtin_profile(2);
    profile.network_bytes_per_second = network;
    return make_plan(tiny_recipe(8, overrides, on_host), profile);
  };
  struct Bytes {
    int64_t shard = 0, replicate = 0, network = 0, network_across = 0;
    double seconds = 0;
  };
  const auto bytes = [](const Plan& p) {
    Bytes b;
    for (const CollectivePlan& c : p.ranks[0].collectives) {
      (c.axis == "replica" ? b.replicate : b.shard) += c.axis == "data+replica" ? 0 : c.wire_bytes;
      b.network += c.network_bytes;
      b.seconds += c.seconds;
      if (c.axis == "replica") b.network_across += c.network_bytes;
    }
    return b;
  };
  const Bytes flat = bytes(plan({"parallel.hierarchical_reduction=8"})),
              two = bytes(plan({"parallel.hierarchical_reduction=node"})),
              hybrid = bytes(plan({"parallel.shard_group=node", "parallel.zero_stage=1"})),
              number = bytes(plan({"parallel.shard_group=4", "parallel.zero_stage=1"}));
  CHECK((flat.replicate == 0 && flat.shard > 0));
  CHECK(two.shard == 6 * two.replicate);  // 2 S 3/4 and 2 S/4 1/2
  CHECK((hybrid.shard == two.shard && hybrid.replicate == two.replicate));
  CHECK(two.network_across == two.replicate);
  CHECK(two.network < two.replicate + 200);  // and the few bytes of the norm and of the count of tokens
  CHECK((number.shard == two.shard && number.replicate == two.replicate));
  // Flat: each rank sends 4 of its 7 peers' parts to the other node.
  CHECK(flat.network == Approx(flat.shard * 4 / 7.0).epsilon(0.01));
  CHECK(two.network < flat.network / 3);
  // A slower network: only what crosses it is dearer.
  const Bytes slow = bytes(plan({"parallel.hierarchical_reduction=node"}, 1e6));
  CHECK(slow.seconds > two.seconds + 3.9 * static_cast<double>(slow.replicate) / 1e6);
  CHECK(slow.seconds < two.seconds + 4.2 * static_cast<double>(slow.network) / 1e6);
  // One host with all ranks has no network.
  CHECK(bytes(plan({"parallel.hierarchical_reduction=4"}, 1e6, 8)).seconds < two.seconds + 1e-3);
  CHECK_THAT(plan_text(plan({"parallel.hierarchical_reduction=node"}),
                       tiny_recipe(8, {"parallel.data=8", "launch.ranks_per_node=4",
                                       "parallel.hierarchical_reduction=node"})),
             Contains("to other nodes") && Contains("10.0 Gbit/s for the 4 ranks of a node"));
}

TEST_CASE("ranks beyond the cores of a host slow each other down", "[plan]") {
  // Two cores; ranks of one thread each, with as much work each (the batch grows with them).
  const MachineProfile profile = builtin_profile(2);
  const auto compute = [&](int ranks, int on_host) {
    const Recipe r = tiny_recipe(
        ranks, {"launch.threads_per_rank=1", fmt::format("train.global_batch_size={}", 4 * ranks)}, on_host);
    const Plan plan = make_plan(r, profile);
    double seconds = 0;
    for (const OpPlan& o : plan.ranks[0].ops)
      if (o.name.rfind("matmul", 0) == 0) seconds += o.seconds;
    return seconds;
  };
  const double two = compute(2, 2);
  CHECK(two > 0);
  CHECK(compute(1, 1) == Approx(two));
  CHECK(compute(16, 16) == Approx(8 * two));
  CHECK(compute(16, 8) == Approx(4 * two));  // two nodes: eight ranks share two cores
}

TEST_CASE("an assumed network is named, a card's node has an adapter for each card", "[plan]") {
  const Recipe two_nodes = tiny_recipe(16, {"train.global_batch_size=48", "parallel.data=16"}, 8);
  const Plan cpu = make_plan(two_nodes, builtin_profile(2));
  REQUIRE(cpu.network_bytes() > 0);
  CHECK(cpu.network_source == "assumed: 10 Gbit/s Ethernet a node");
  CHECK_THAT(
      plan_text(cpu, two_nodes),
      Contains("between nodes: 10.0 Gbit/s for the 8 ranks of a node, assumed: 10 Gbit/s Ethernet a node") &&
          Contains("(the network between nodes was not measured; assumed: 10 Gbit/s"));
  CHECK(json::parse(plan_json(cpu))["network_source"] == cpu.network_source);
  Recipe on_cards = two_nodes;
  on_cards.device = DeviceChoice::cuda;
  const MachineProfile h100 = card_profile("h100");
  const Plan cards = make_plan(on_cards, h100);
  CHECK(cards.network_bytes_per_second == Approx(8 * 0.9 * 50e9));  // sustained
  CHECK(cards.network_source == "assumed: InfiniBand NDR, 400 Gbit/s a card, as in DGX H100");
  const auto network = std::find_if(cards.ranks[0].collectives.begin(), cards.ranks[0].collectives.end(),
                                    [](const CollectivePlan& c) { return c.network_bytes > 0; });
  REQUIRE(network != cards.ranks[0].collectives.end());
  // The eight ranks of a node, each through its own adapter, at the share of it that the network sustains.
  const NetworkLevel& level = h100.levels.back();
  const double rate = 8 * 50e9 * level.sustained.value;
  CHECK(network->seconds >= static_cast<double>(network->wire_bytes) / rate);
  CHECK(network->seconds <
        static_cast<double>(network->wire_bytes) / rate + static_cast<double>(network->calls) * 1e-3);
  // On one node nothing is assumed of a network, and nothing is said of one.
  CHECK_THAT(plan_text(plan_of(tiny_recipe(2)), tiny_recipe(2)), !Contains("assumed"));
}

TEST_CASE("a process on a GPU has room for the driver and the libraries in the host's memory", "[plan]") {
  Recipe r = tiny_recipe(8);
  r.device = DeviceChoice::cuda;
  for (const RankPlan& rank : make_plan(r, card_profile("h100")).ranks)
    CHECK(rank.host_bytes >= int64_t{1344} << 20);  // measured on an H200, of two ranks with NCCL
}
