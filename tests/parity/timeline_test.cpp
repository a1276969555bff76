// Measured ops of a step are the planned ones: the same order and names, on every stream and in every layout.
#include "kernels/tensor/timeline.h"
#include "kernels/elementwise/tensor_ops.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions timeline_job(const char* architecture) {
  TinyOptions o;
  o.architecture = architecture;
  o.precision = "fp32";
  o.dropout = 0.1;
  o.steps = 2;
  o.global_batch = 4;
  o.timeline = true;
  return o;
}

void check_ops(const TinyOptions& o) {
  const TinyResult r = train_tiny(o);
  REQUIRE(r.plan_ops.size() == static_cast<size_t>(tiny_world(o)));
  for (size_t rank = 0; rank < r.plan_ops.size(); ++rank) {
    CAPTURE(rank);
    CHECK(r.plan_ops[rank].size() > 20);
    CHECK(op_difference(r.plan_ops[rank], r.used_ops[rank]) == "");
  }
}

}  // namespace

TEST_CASE("the timeline of a step has the ops of its plan, in every layout", "[timeline]") {
  SECTION("one rank") {
    check_ops(timeline_job("llama"));
    TinyOptions o = timeline_job("gpt2");
    o.precision = "bf16";
    o.recompute.run = 1;
    check_ops(o);
  }
  SECTION("ZeRO") {
    for (int stage : {0, 1, 2, 3}) {
      TinyOptions o = timeline_job("llama");
      o.ranks = 2, o.zero_stage = stage;
      check_ops(o);
    }
  }
  SECTION("tensor and context") {
    TinyOptions o = timeline_job("gpt2");
    o.tensor = 2, o.sequence_parallel = true, o.context = 2;
    check_ops(o);
    o.sequence_parallel = false, o.context = 1, o.tensor = 4, o.tensor_mode = "2d", o.micro_batch = 2;
    check_ops(o);
  }
  SECTION("pipeline") {
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      TinyOptions o = timeline_job("llama");
      o.pipeline = 2, o.schedule = schedule;
      check_ops(o);
    }
  }
  SECTION("states, weights and activations that lie elsewhere") {
    TinyOptions o = timeline_job("llama");
    o.ranks = 2, o.zero_stage = 3;
    o.offload.fraction = 1, o.offload.params = 1;
    check_ops(o);
    o = timeline_job("llama");
    o.activations.fraction = 1;
    o.activations.tensors.add(BlockTensor::qkv);
    check_ops(o);
  }
  SECTION("experts") {
    TinyOptions o = timeline_job("llama");
    o.moe.num_experts = 4, o.moe.top_k = 2;
    o.ranks = 2, o.expert = 2, o.dropout = 0;
    check_ops(o);
  }
  SECTION("optimizers") {
    for (const char* rule : {"lamb", "muon", "adafactor", "adamw8bit", "lion"}) {
      CAPTURE(rule);
      TinyOptions o = timeline_job("llama");
      o.optimizer.rule = *update_rule(rule);
      o.ranks = 2, o.zero_stage = 1;
      check_ops(o);
    }
  }
}

TEST_CASE("a timeline has what its thread enqueues while it lives, an op in an op as part of it",
          "[timeline]") {
  const auto compute = make_inline_stream("compute"), side = make_worker_stream("side");
  std::vector<float> x(1000), y(1000);
  const Tensor to{x.data(), DType::f32, DeviceKind::cpu, {1000}, nullptr};
  const Tensor from{y.data(), DType::f32, DeviceKind::cpu, {1000}, nullptr};
  fill_zero(*compute, to);
  {
    const Timeline t;
    CHECK(Timeline::of_thread() == &t);
    CHECK_THROWS_AS(Timeline(), Error);
    const double before = steady_seconds();
    enter_layer(*compute, "first");
    fill_zero(*compute, to);
    {
      const OpRange outer(*side, "outer", 12);
      fill_zero(*side, to);
      add_to(*side, to, from);
    }
    enter_layer(*compute, "second");
    {
      const TimelinePause pause;
      add_to(*compute, to, from);
    }
    add_to(*compute, to, from);
    side->synchronize();
    const auto ranges = t.ranges();
    REQUIRE(ranges.size() == 3);
    CHECK((ranges[0].name == "fill_zero" && ranges[0].layer == "first" && ranges[0].stream == "compute"));
    CHECK((ranges[1].name == "outer" && ranges[1].layer == "first" && ranges[1].stream == "side"));
    CHECK(ranges[1].wire_bytes == 12);
    CHECK((ranges[2].name == "add_to" && ranges[2].layer == "second"));
    for (const Timeline::Range& r : ranges) {
      CHECK(r.start >= before);
      CHECK(r.seconds >= 0);
      CHECK(r.start + r.seconds <= steady_seconds());
    }
  }
  CHECK(!Timeline::of_thread());
}
