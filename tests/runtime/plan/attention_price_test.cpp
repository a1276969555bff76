// Prices of attention's backward in a plan, by the kernels that run it.
#include <catch2/catch.hpp>

#include "kernels/attention/attention.h"
#include "runtime/machines/trainer_profile.h"
#include "runtime/plan/make_plan.h"
#include "tests/runtime/plan/tiny_recipe.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Seconds of ops of a step whose names begin so, and their operations.
struct Sum {
  double seconds = 0, flops = 0;
  int calls = 0;
};

Sum sum_of(const MachineProfile& p, const std::string& name, const std::vector<std::string>& more) {
  std::vector<std::string> settings{"device=cuda",
                                    "precision=bf16",
                                    "model.hidden_size=2048",
                                    "model.num_attention_heads=16",
                                    "model.max_position_embeddings=4096",
                                    "data.seq_length=4096"};
  settings.insert(settings.end(), more.begin(), more.end());
  Sum sum;
  for (const TraceEntry& e : step_entries(tiny_recipe(1, settings), p, 0))
    if (e.name == name) sum.seconds += e.seconds, sum.flops += e.flops, ++sum.calls;
  return sum;
}

double backward_seconds(const MachineProfile& p, const std::string& name,
                        const std::vector<std::string>& more = {}) {
  const Sum sum = sum_of(p, name, more);
  INFO(name);
  REQUIRE(sum.calls > 0);
  return sum.seconds - sum.calls * p.device->launch_seconds.value;
}

}  // namespace

TEST_CASE("ltrain's backward of attention is priced at seven products where the published rate is of five",
          "[plan]") {
  const MachineProfile ours = find_profile("h200");
  MachineProfile theirs = ours;
  price_as(theirs, find_trainer("published-kernels"));
  const double own = backward_seconds(ours, "attention_backward");
  CHECK(own / backward_seconds(theirs, "attention_backward") == Approx(7.0 / 5));
  // Measured rates are those of five matmuls, and of two forward, each with its own rate.
  const Sum five = sum_of(ours, "attention_backward", {}), two = sum_of(ours, "attention_forward", {});
  CHECK(five.flops / two.flops == Approx(5.0 / 2));
  CHECK(backward_seconds(ours, "attention_forward") == backward_seconds(theirs, "attention_forward"));
  const auto peak = ours.device->matmul.peak.at("bf16").value * ours.device->under_load.value;
  CHECK(own == Approx(five.flops * 7 / 5 / (0.53 * peak) * (1 + 300.0 / 4096)));
}

TEST_CASE("narrower values have fewer products computed again, by their width", "[plan]") {
  const MachineProfile ours = find_profile("h200");
  MachineProfile theirs = ours;
  price_as(theirs, find_trainer("published-kernels"));
  OpCost op;
  op.cls = OpClass::attention, op.name = "attention_backward", op.dtype = DType::bf16;
  op.flops = 3 * 192 + 2 * 128, op.recomputed_flops = 192 + 128, op.flops *= 1e10,
  op.recomputed_flops *= 1e10;
  op.k = 192, op.n = 4096;
  const auto seconds = [&](const MachineProfile& p) {
    return DeviceCost(*p.device, p.levels).attention_seconds(op);
  };
  CHECK(seconds(ours) / seconds(theirs) == Approx((4 * 192 + 3 * 128.0) / (3 * 192 + 2 * 128.0)));
}

TEST_CASE("a plan prices cuDNN's backward by its own rate, deterministic or not", "[plan]") {
  const MachineProfile h200 = find_profile("h200"), a100 = find_profile("a100");
  const std::vector<std::string> asked{"attention_backend=cudnn"},
      any_order{"attention_backend=cudnn", "deterministic=false"};
  const std::string name(kDeterministicBackwardByCudnn);
  const double own = backward_seconds(h200, "attention_backward");
  const double fast = backward_seconds(h200, std::string(kBackwardByCudnn), any_order);
  CHECK(own / fast == Approx(7.0 / 5));
  // The published rate: 404 TFLOP/s at 4 Ki tokens.
  const double rate = sum_of(h200, name, asked).flops / backward_seconds(h200, name, asked);
  CHECK(rate / h200.device->under_load.value == Approx(404e12).epsilon(0.02));
  CHECK(backward_seconds(h200, name, asked) < own);
  CHECK(backward_seconds(h200, name, asked) > fast);
  // A card without such a rate: as ltrain's.
  CHECK(backward_seconds(a100, name, asked) == backward_seconds(a100, "attention_backward"));
  // Neither runs where it is not asked for.
  CHECK(sum_of(h200, name, {}).calls == 0);
  CHECK(sum_of(h200, name, {"attention_backend=own"}).calls == 0);
  CHECK(sum_of(h200, std::string(kBackwardByCudnn), asked).calls == 0);
}
