// Weights that are away between gathers: the same bits in every layout, alone and with states and
// activations, and plans have the arena without them to the byte.
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions params_offload_job(const std::string& precision) {
  TinyOptions o;
  o.precision = precision;
  o.global_batch = 4;
  o.layers = 4;
  o.steps = 3;
  o.bucket_elements = 2000;
  o.zero_stage = 3;
  o.ranks = 2;
  return o;
}

OffloadSettings away(double params, double states = 0) {
  OffloadSettings s;
  s.window = 160;
  s.params = params;
  s.fraction = states;
  return s;
}

TinyResult check_same_as_resident(const TinyResult& resident, const TinyOptions& o) {
  const TinyResult r = train_tiny(o);
  check_same_bits(resident, r);
  CHECK(r.averages == resident.averages);
  CHECK(r.plan_bytes == r.used_bytes);
  CHECK(r.plan_offloaded == r.used_offloaded);
  CHECK(r.used_wire == resident.used_wire);
  CHECK(r.used_offloaded[0].params > 0);
  return r;
}

}  // namespace

TEST_CASE("weights that are away give the bits of those that stay, with and without states beside them") {
  for (const std::string precision : {"fp32", "bf16"})
    for (int ranks : {1, 2}) {
      TinyOptions o = params_offload_job(precision);
      o.ranks = ranks;
      o.optimizer.groups = {{"*norm*", std::nullopt, 0.5, 0.0}};
      const TinyResult resident = train_tiny(o);
      for (const auto& [params, states] :
           {std::pair(1.0, 0.0), std::pair(0.5, 0.0), std::pair(1.0, 1.0), std::pair(0.6, 0.4)}) {
        INFO(precision << " ranks " << ranks << " weights " << params << " states " << states);
        o.offload = away(params, states);
        const TinyResult r = check_same_as_resident(resident, o);
        CHECK((r.used_offloaded[0].optimizer > 0) == (states > 0));
        CHECK(r.used_bytes[0] < resident.used_bytes[0] + 3 * 4 * 160 * 4);
      }
    }
}

TEST_CASE("what of the weights stays is what their fraction says, and what is away is not in the arena") {
  const auto plan = [](double params) {
    TinyOptions o = params_offload_job("fp32");
    o.layers = 12;
    o.bucket_elements = 100;  // a bucket for each unit
    o.offload = away(params);
    MetaJob job(o, 0);
    job.program.train_step({}, tiny_adamw(1));
    return std::pair(job.memory.peak().by_kind[static_cast<int>(MemoryKind::parameters)],
                     job.program.offloaded().params);
  };
  const auto [all, none] = plan(0);
  CHECK(none == 0);
  const auto [nothing, whole] = plan(1);
  CHECK(nothing == 0);
  CHECK(whole >= all);  // in whole blocks
  const auto [half, other] = plan(0.5);
  CHECK(static_cast<double>(half) == Approx(0.5 * static_cast<double>(all)).epsilon(0.05));
  CHECK(other < whole);
}

TEST_CASE("weights leave in every layout, bit for bit") {
  const auto check = [&](const char* name, auto change) {
    INFO(name);
    TinyOptions o = params_offload_job("fp32");
    change(o);
    const TinyResult resident = train_tiny(o);
    o.offload = away(1, 1);
    check_same_as_resident(resident, o);
    o.activations.fraction = 1;
    o.activations.input = true;
    for (int i = 0; i < kBlockTensors; ++i) o.activations.tensors.add(static_cast<BlockTensor>(i));
    check_same_as_resident(resident, o);
  };
  check("tensor", [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true; });
  check("pipeline", [](TinyOptions& o) { o.pipeline = 2, o.optimizer.rule = UpdateRule::lion; });
  check("zb-h1", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zb-h1", o.ranks = 1; });
  check("context", [](TinyOptions& o) { o.context = 2, o.optimizer.rule = UpdateRule::sgd; });
  check("2d", [](TinyOptions& o) { o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2; });
  check("two levels", [](TinyOptions& o) { o.ranks = 4, o.shard = 2; });
  check("experts", [](TinyOptions& o) { o.expert = 2, o.moe.num_experts = 4; });
  check("tied", [](TinyOptions& o) { o.architecture = "gpt2"; });
  check("an average", [](TinyOptions& o) { o.ema_decay = 0.9; });
  check("an average in bf16", [](TinyOptions& o) { o.ema_decay = 0.9, o.precision = "bf16"; });
  check("recomputed", [](TinyOptions& o) { o.recompute.run = 2; });
  check("no masters",
        [](TinyOptions& o) { o.precision = "bf16", o.master_weights = false, o.bf16_states = true; });
}

TEST_CASE("a disk that is full when weights are written back ends the step with the code of storage") {
  TinyOptions o = params_offload_job("fp32");
  o.offload = away(1);
  check_full_disk(o, 9, "offload.params.path");
}
