// Mutation over every collective of the step, under every kind of layout: one at a time is left out, made
// twice, or made over another group. The placement check must refuse each mutant on meta, before anything
// runs; what it let through would have to fail the parity check. None may survive both. The counts are
// printed (scripts/checks/mutation.sh).
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <map>

#include "tests/parity/mutant_group.h"
#include "tests/support/tiny_job.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

enum class Kind { remove, twice, other_axis, half_of_the_axis, more_ranks, group_of_one, other_level };
constexpr std::pair<Kind, const char*> kKinds[] = {{Kind::remove, "removed"},
                                                   {Kind::twice, "doubled"},
                                                   {Kind::other_axis, "on another axis"},
                                                   {Kind::half_of_the_axis, "on half of the axis"},
                                                   {Kind::more_ranks, "on more ranks"},
                                                   {Kind::group_of_one, "on a group of one"},
                                                   {Kind::other_level, "on the other level"}};

struct NamedJob {
  std::string name;
  TinyOptions options;
};

/// 1-bit optimizers after their warm-up, whose first step is of another kind.
std::vector<NamedJob> onebit_jobs() {
  std::vector<NamedJob> all;
  for (const UpdateRule rule : {UpdateRule::onebit_adam, UpdateRule::onebit_lamb})
    for (int tensor : {1, 2}) {
      TinyOptions o;
      o.ranks = tensor == 1 ? 4 : 2;
      o.tensor = tensor;
      o.optimizer.rule = rule;
      o.optimizer.freeze_step = 3;
      all.push_back({fmt::format("{}, tensor {}", update_rule_name(rule), tensor), o});
    }
  return all;
}

/// Data-parallel, tensor-parallel and both, with every stage of ZeRO; context-parallel and tensor-parallel in
/// every way.
std::vector<NamedJob> mutated_jobs(int data) {
  std::vector<NamedJob> all;
  const auto add = [&](const std::string& name, int ranks, int tensor, bool sequence, int zero,
                       int accumulation) {
    TinyOptions o;
    o.zero_stage = zero;
    o.ranks = ranks;
    o.tensor = tensor;
    o.sequence_parallel = sequence;
    o.global_batch = 8;
    o.micro_batch = 8 / (ranks * accumulation);
    o.steps = 2;
    o.padded_targets = true;
    o.architecture = tensor > 1 ? "gpt2" : "llama";  // with biases and positions, which are added once
    all.push_back({fmt::format("{}, ZeRO {}, accumulation {}", name, zero, accumulation), o});
  };
  for (int zero : {0, 1, 2, 3})
    for (int accumulation : {1, 2}) add(fmt::format("data {}", data), data, 1, false, zero, accumulation);
  add(fmt::format("data {}, weights kept", data), data, 1, false, 3, 2);
  all.back().options.reshard = false;
  add(fmt::format("data {}, a layer of ZeRO-2 under ZeRO-3", data), data, 1, false, 3, 2);
  all.back().options.zero_layers = 1;
  for (bool sequence : {false, true}) {
    add(sequence ? "tensor 2 with sequence" : "tensor 2", 1, 2, sequence, 0, 1);
    for (int zero : {1, 3})
      add(sequence ? "data 2, tensor 2 with sequence" : "data 2, tensor 2", 2, 2, sequence, zero, 1);
  }
  // Adapters, of whose factors tensor ranks share one: its gradient is a sum over them.
  for (bool sequence : {false, true}) {
    add(sequence ? "adapters, tensor 2 with sequence" : "adapters, tensor 2", 2, 2, sequence,
        sequence ? 3 : 0, 1);
    all.back().options.lora.rank = 2;
  }
  for (const auto& [comm, ranks] :
       {std::pair<const char*, int>{"p2p", 2}, {"p2p", 4}, {"all_gather", 2}, {"a2a", 2}, {"a2a+p2p", 4}}) {
    TinyOptions o;
    o.context = ranks;
    o.context_comm = comm;
    o.global_batch = o.micro_batch = 2;
    o.steps = 2;
    all.push_back({fmt::format("context {} {}", ranks, comm), o});
  }
  // Products in parts beside their collectives: sums by rows, rings of one and of three hops.
  for (const auto& [tensor, sequence] : {std::pair{2, false}, {2, true}, {4, true}}) {
    add(fmt::format("tensor {} in parts{}", tensor, sequence ? " with sequence" : ""), 1, tensor, sequence, 0,
        1);
    all.back().options.async_tensor_parallel = true;
  }
  // A backward and the next forward by turns.
  for (int zero : {0, 3}) {
    add("tensor 2 with sequence, by turns", 2, 2, true, zero, 2);
    all.back().options.interleaved = true;
    all.back().options.layers = 1;
    all.back().options.architecture = zero == 3 ? "llama" : "gpt2";
  }
  const auto pipeline = [&](const char* schedule, int stages, int chunks, int ranks, int tensor, int zero) {
    TinyOptions o;
    o.pipeline = stages;
    o.schedule = schedule;
    o.chunks = chunks;
    o.layers = 4;
    o.ranks = ranks;
    o.tensor = tensor;
    o.sequence_parallel = tensor > 1;
    o.zero_stage = zero;
    o.global_batch = 4 * ranks;
    o.steps = 2;
    o.tied = true;
    all.push_back({fmt::format("{} on {} stages, data {}, tensor {}, ZeRO {}", schedule, stages * chunks,
                               ranks, tensor, zero),
                   o});
  };
  // A forward beside another micro-batch's backward.
  pipeline("dualpipev", 2, 2, 1, 2, 1);
  all.back().name += ", by turns";
  all.back().options.interleaved = true;
  // Gradients on two levels, as many ranks on the one as on the other; alone and with the other axes.
  const auto two_level = [&](int ranks, int context, int inside, int zero, int tensor, int stages) {
    TinyOptions o;
    o.ranks = ranks;
    o.context = context;
    o.shard = inside;
    o.zero_stage = zero;
    o.tensor = tensor;
    o.pipeline = stages;
    o.layers = 2 * stages;
    o.tied = true;
    o.global_batch = 2 * ranks * stages;
    o.micro_batch = stages > 1 ? 1 : 2;
    if (zero >= 2) o.micro_batch = 1;  // with accumulation
    o.steps = 2;
    all.push_back({fmt::format("data {}, context {}, tensor {}, stages {}, levels of {}, ZeRO {}", ranks,
                               context, tensor, stages, inside, zero),
                   o});
  };
  for (int zero : {0, 1, 2, 3}) two_level(4, 1, 2, zero, 1, 1);
  two_level(2, 2, 2, 0, 1, 1);
  two_level(2, 2, 2, 3, 1, 1);
  two_level(4, 1, 2, 1, 2, 1);
  two_level(4, 1, 2, 2, 1, 2);
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise}) {
    TinyOptions o;
    o.fp8.emplace().recipe = recipe;
    o.fp8->output_layer = true;
    o.tensor = o.context = 2;
    o.global_batch = o.micro_batch = 2;
    o.steps = 2;
    all.push_back({"context 2, tensor 2 in FP8", o});
  }
  for (const int stages : {1, 2}) {
    TinyOptions o;
    o.architecture = "deepseek_v3";
    o.modules = 1;
    o.tensor = 2;
    o.sequence_parallel = stages == 2;
    o.pipeline = stages;
    o.ranks = 2;
    o.zero_stage = 3;
    o.global_batch = 4;
    o.steps = 2;
    all.push_back({fmt::format("multi-token prediction, tensor 2, data 2, stages {}", stages), o});
  }
  {  // twice as many tensor ranks as key-value heads
    TinyOptions o;
    o.tensor = 4;
    o.global_batch = o.micro_batch = 2;
    o.steps = 2;
    all.push_back({"tensor 4, 2 key-value heads", o});
  }
  const auto grid = [&](const char* mode, int tensor, int depth, int ranks, int zero, int accumulation) {
    TinyOptions o;
    o.tensor_mode = mode;
    o.tensor = tensor;
    o.tensor_depth = depth;
    o.ranks = ranks;
    o.zero_stage = zero;
    o.architecture = ranks > 1 ? "llama" : "gpt2";
    o.micro_batch = 4;
    o.global_batch = 4 * ranks * accumulation;
    o.seq = 8;
    o.steps = 2;
    o.layers = 1;
    all.push_back({fmt::format("{} on {} of depth {}, data {}, ZeRO {}, accumulation {}", mode, tensor, depth,
                               ranks, zero, accumulation),
                   o});
  };
  grid("2d", 4, 1, 1, 0, 2);
  grid("2d", 4, 1, 2, 1, 1);
  grid("2.5d", 8, 2, 1, 0, 1);
  grid("3d", 8, 1, 1, 0, 2);
  const auto experts = [&](int ranks, int cut, int zero, int tensor, bool apart, int context,
                           const DispatchOptions& dispatch = {}, int near = 0) {
    TinyOptions o;
    o.architecture = "mixtral";
    o.moe.num_experts = 4;
    o.moe.balance = BalanceLoss::switch_loss;
    o.ranks = ranks;
    o.expert = cut;
    o.zero_stage = zero;
    o.tensor = tensor;
    o.sequence_parallel = apart;
    o.expert_tensor = !apart;
    o.context = context;
    o.micro_batch = 2;
    o.global_batch = 2 * ranks;
    o.seq = 8;
    o.steps = 2;
    o.layers = 1;
    o.dispatch = dispatch;
    o.intra_node_experts = near;
    all.push_back({fmt::format("experts over {}, data {}, context {}, tensor {}{}, ZeRO {}{}", cut, ranks,
                               context, tensor, apart ? " with experts of their own" : "", zero,
                               dispatch.gather       ? ", gathered"
                               : dispatch.chunks > 1 ? ", in parts"
                               : dispatch.replicas   ? ", copies of hot ones"
                               : dispatch.row_budget ? ", with a budget of rows"
                               : near                ? ", on two levels"
                                                     : ""),
                   o});
  };
  experts(2, 2, 0, 1, false, 1);
  experts(4, 2, 1, 1, false, 1);
  experts(4, 2, 3, 1, false, 1);
  for (const bool adapters : {false, true}) {
    experts(2, 2, 0, 2, false, 1);
    if (!adapters) continue;
    all.back().name = "adapters of " + all.back().name;
    all.back().options.lora.rank = 2;
    all.back().options.lora.target_modules = {"*.experts.*"};
  }
  experts(2, 4, 1, 2, true, 1);
  experts(2, 4, 0, 1, false, 2);
  DispatchOptions gather, parts;
  gather.gather = true, parts.chunks = 2;
  experts(2, 2, 0, 1, false, 1, gather);
  experts(2, 4, 1, 2, true, 1, gather);
  experts(2, 2, 0, 2, false, 1, parts);
  experts(4, 4, 0, 1, false, 1, {}, 2);
  DispatchOptions copies;
  copies.replicas = 2;
  experts(2, 2, 0, 1, false, 1, copies);
  experts(4, 2, 3, 2, false, 1, copies);
  DispatchOptions slices;  // the plan's rank gets two even shares
  slices.row_budget = 1, slices.skew = 2;
  experts(2, 2, 0, 1, false, 1, slices);
  experts(2, 2, 1, 2, false, 1, slices);
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise}) {
    experts(2, recipe == Fp8Recipe::delayed ? 2 : 1, 1, 2, false, 1);
    all.back().options.fp8.emplace().recipe = recipe;
    all.back().name += fmt::format(" in FP8, {}", to_string(recipe));
  }
  // The other ways to choose and to balance; norms that tensor ranks share, as many heads and copies of them.
  const auto routers = [&](const char* name, int ranks, int tensor, int kv_heads, auto change) {
    experts(ranks, 2, 1, tensor, false, 1);
    TinyOptions& o = all.back().options;
    o.architecture = "olmoe";
    o.kv_heads = kv_heads;
    o.moe.balance = BalanceLoss::none;
    change(o);
    all.back().name = name;
  };
  routers("GShard's random second expert, noise and a bias, tensor 2", 2, 2, 4, [](TinyOptions& o) {
    o.moe.selection = Selection::gshard_top2;
    o.moe.jitter_eps = 0.1;
    o.moe.bias_update_rate = 0.1;
  });
  routers("expert choice, tensor 4 of 2 key-value heads", 2, 4, 2, [](TinyOptions& o) {
    o.moe.selection = Selection::expert_choice;
    o.moe.norm_topk_prob = false;
  });
  for (const bool apart : {false, true}) {
    experts(1, apart ? 2 : 1, 0, apart ? 2 : 1, apart, 2);
    all.back().options.moe.capacity_factor = 0.75;
    all.back().name += ", with a capacity";
  }
  routers("frozen routers", 2, 1, 4, [](TinyOptions& o) { o.optimizer.freeze_routers = true; });
  // compressed all-reduce, and a step that is made twice.
  for (int zero : {0, 1}) {
    add("gradients in 8 bits", data, 1, false, zero, 2);
    all.back().options.reduce_code = Code::int8;
    for (const auto estimator : {HessianEstimator::hutchinson, HessianEstimator::gauss_newton}) {
      add("Sophia", data, 1, false, zero, 1);
      all.back().options.optimizer.rule = UpdateRule::sophia;
      all.back().options.optimizer.hessian_estimator = estimator;
      all.back().options.optimizer.hessian_interval = 1;
      all.back().options.optimizer.hessian_radius = 1e-3;
    }
  }
  pipeline("1f1b", 2, 1, 1, 1, 0);
  pipeline("zb-h1", 2, 1, 2, 1, 2);
  pipeline("zbv", 2, 2, 1, 2, 0);
  pipeline("interleaved", 2, 2, 2, 1, 3);
  return all;
}

struct MetaRun {
  std::map<std::string, int64_t> train_calls, calls;  ///< calls by group: in a train step; with the eval step
  std::string target, refusal;
};

/// Runs rank 1 on meta with call `target` of `group` mutated.
MetaRun run_on_meta(const TinyOptions& o, Kind kind, const std::string& group, int64_t target) {
  MetaRun run;
  std::map<std::string, MutantGroup*> mutants;
  const GroupWrapper wrap = [&](const GroupRequest& r, std::unique_ptr<Communicator> inner) {
    const int size = inner->size();
    std::unique_ptr<Communicator> other;
    Mutation mutation = Mutation::elsewhere;
    switch (kind) {
      case Kind::remove:
        mutation = Mutation::remove;
        break;
      case Kind::twice:
        mutation = Mutation::twice;
        break;
      case Kind::other_axis:  // an axis that the group does not span
        other = make_recording_group(0, size, "other", r.axes.has(Axis::tensor) ? Axis::data : Axis::tensor);
        break;
      case Kind::half_of_the_axis:
        other = make_recording_group(0, std::max(1, size / 2), "half", r.axes, r.whole);
        break;
      case Kind::more_ranks:
        other = make_recording_group(0, size * 2, "more", r.axes);
        break;
      case Kind::group_of_one:
        other = make_recording_group(0, 1, "one", Axis::expert);
        break;
      case Kind::other_level: {
        const Mesh mesh = tiny_mesh(o, tiny_world(o) - 1);
        const AxisSet level = r.name == "replicate" ? mesh.shard : mesh.replicate();
        other = make_recording_group(0, mesh.size(level), "other level", level);
        break;
      }
    }
    auto mutant = std::make_unique<MutantGroup>(std::move(inner), mutation, r.name == group ? target : -1,
                                                std::move(other));
    mutants[r.name] = mutant.get();
    return mutant;
  };
  std::unique_ptr<MetaJob> job;
  try {
    job = std::make_unique<MetaJob>(o, tiny_world(o) - 1, wrap);
    job->program.train_step({}, tiny_adamw(step_kinds(o.optimizer).usual_step));
    for (const auto& [name, m] : mutants) run.train_calls[name] = m->calls();
    job->program.evaluate(nullptr);
  } catch (const Error& e) {
    run.refusal = e.what();
  }
  if (!job) return run;
  for (const auto& [name, m] : mutants) run.calls[name] = m->calls();
  if (mutants.count(group)) run.target = mutants[group]->target_name();
  return run;
}

MetaRun run_whole(const TinyOptions& o) { return run_on_meta(o, Kind::remove, "", -1); }

/// Do the numbers of a mutant differ from those of the program as it is?
bool parity_fails(const TinyResult& good, const TinyOptions& o, Mutation mutation, const std::string& group,
                  int64_t target) {
  TinyResult bad;
  try {
    bad = train_tiny(o, [&](const GroupRequest& r, std::unique_ptr<Communicator> inner) {
      return std::make_unique<MutantGroup>(std::move(inner), mutation, r.name == group ? target : -1);
    });
  } catch (const Error&) {
    return true;
  }
  const auto differ = [](double a, double b) { return !(std::abs(a - b) <= 1e-10 * std::abs(a)); };
  bool fails = differ(good.eval_loss, bad.eval_loss);
  for (size_t i = 0; i < good.losses.size(); ++i)
    fails = fails || differ(good.losses[i], bad.losses[i]) || differ(good.norms[i], bad.norms[i]);
  for (const auto& [name, values] : good.parameters)
    for (size_t i = 0; i < values.size(); ++i)
      fails = fails || std::abs(values[i] - bad.parameters.at(name)[i]) > 1e-9;
  return fails;
}

}  // namespace

TEST_CASE("mutation: the placement check refuses every mutant of every collective of the step") {
  int64_t mutants = 0, refused = 0;
  std::vector<std::string> passed;
  std::vector<NamedJob> all = mutated_jobs(4);
  for (const NamedJob& layout : onebit_jobs()) all.push_back(layout);
  for (const NamedJob& layout : all) {
    const MetaRun whole = run_whole(layout.options);
    INFO(layout.name);
    REQUIRE(whole.refusal == "");
    int64_t here = 0, calls = 0, refused_here = 0;
    for (const auto& [group, count] : whole.calls) {
      calls += count;
      for (const auto& [kind, name] : kKinds) {
        if (kind == Kind::other_level && group != "shard" && group != "replicate") continue;
        // Twice the ranks of a level of the all-to-all are the whole group: that call would have too few
        // counts of rows, which it checks itself; the mutant gives as many as its group takes.
        if (kind == Kind::more_ranks && (group == "expert intra-node" || group == "expert inter-node"))
          continue;
        for (int64_t target = 0; target < count; ++target) {
          const MetaRun run = run_on_meta(layout.options, kind, group, target);
          ++mutants, ++here;
          if (!run.refusal.empty()) {
            ++refused, ++refused_here;
          } else {
            passed.push_back(
                fmt::format("{}: {} #{} of group {} {}", layout.name, run.target, target, group, name));
          }
        }
      }
    }
    REQUIRE(calls >= 4);
    std::printf("mutation on meta: %s: %ld collectives, %ld mutants, %ld refused\n", layout.name.c_str(),
                static_cast<long>(calls), static_cast<long>(here), static_cast<long>(refused_here));
  }
  std::printf("mutation on meta: %ld mutants, %ld refused by the placement check, %zu survivors\n",
              static_cast<long>(mutants), static_cast<long>(refused), passed.size());
  for (const std::string& p : passed) std::printf("  survivor: %s\n", p.c_str());
  CHECK(refused == mutants);
}

TEST_CASE("slow: mutation: a collective left out or doubled changes the numbers, so parity is a second net") {
  int64_t mutants = 0, failed = 0, same_numbers = 0;
  std::vector<std::string> survivors;
  for (const NamedJob& layout : mutated_jobs(2)) {
    const TinyOptions& o = layout.options;
    const TinyResult good = train_tiny(o);
    const MetaRun whole = run_whole(o);
    REQUIRE_FALSE(parity_fails(good, o, Mutation::none, "", -1));  // the wrapper itself changes nothing
    for (Kind kind : {Kind::remove, Kind::twice})
      for (const auto& [group, count] : whole.calls)
        for (int64_t target = 0; target < count; ++target) {
          // A transfer left out would only run into its deadline: those mutants are the placement check's.
          if (group.rfind("stage", 0) == 0) continue;
          // The first step's collective, or that of the evaluation at the end.
          const int64_t train = whole.train_calls.at(group);
          const int64_t at = target < train ? target : target + (o.steps - 1) * train;
          ++mutants;
          if (parity_fails(good, o, kind == Kind::remove ? Mutation::remove : Mutation::twice, group, at)) {
            ++failed;
            continue;
          }
          // The same numbers: the same values gathered or summed again into another tensor, or a gather left
          // out whose memory still had them. The placement check must know better.
          const MetaRun meta = run_on_meta(o, kind, group, target);
          if (!meta.refusal.empty()) {
            ++same_numbers;
          } else {
            survivors.push_back(fmt::format("{}: {} #{} of group {} {}", layout.name, meta.target, target,
                                            group, kind == Kind::remove ? "removed" : "doubled"));
          }
        }
  }
  std::printf(
      "mutation in fp64 parity: %ld mutants, %ld change the result, %ld give the same numbers and are "
      "refused on meta, %zu survivors\n",
      static_cast<long>(mutants), static_cast<long>(failed), static_cast<long>(same_numbers),
      survivors.size());
  for (const std::string& s : survivors) std::printf("  survivor: %s\n", s.c_str());
  CHECK(survivors.empty());
  CHECK(failed > mutants / 2);
}

TEST_CASE("a refusal names the op, the layer, the axis, what it has and the fix") {
  const TinyOptions o = mutated_jobs(4)[2].options;  // ZeRO 1
  const std::string group = "gradient";
  const auto refusal = [&](Kind kind, int64_t target) { return run_on_meta(o, kind, group, target).refusal; };
  CHECK(refusal(Kind::remove, 0) ==
        "placement error: reading the token count in loss, axis data: needs R but 'token count' is P\n"
        "  fix: all-reduce 'token count' over data");
  CHECK(refusal(Kind::twice, 0) ==
        "placement error: all_reduce in loss, axis data: takes P but 'token count' is R: it was reduced "
        "before, by all_reduce in loss\n  fix: remove one of the two reductions");
  // The second collective of the train step gathers the weights of the first layers, which others updated;
  // the last but one reduces gradients.
  const std::string gather = refusal(Kind::remove, 1);
  CHECK_THAT(gather, Catch::Contains("placement error: using a layer in embedding, axis data: needs R but "
                                     "'parameters, bucket"));
  CHECK_THAT(gather, Catch::Contains("is S(0)\n  fix: all-gather 'parameters, bucket"));
  CHECK_THAT(refusal(Kind::remove, run_whole(o).train_calls.at(group) - 2),
             Catch::Contains("'gradient of ") && Catch::Contains("is P (made partial by") &&
                 Catch::Contains("fix: all-reduce or reduce-scatter"));
  CHECK_THAT(refusal(Kind::half_of_the_axis, 0),
             Catch::Contains("group \"half\" has 2 ranks but the axis has 4"));
}
