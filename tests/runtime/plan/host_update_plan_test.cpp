// Prices of offload.optimizer.update, the choice of auto, and what is refused.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/plan_print.h"
#include "tests/runtime/plan/tiny_recipe.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

Recipe updated_on(const std::string& update, std::vector<std::string> more = {}) {
  more.insert(more.begin(),
              {"device=cuda", "precision=bf16", "model.hidden_size=512", "model.intermediate_size=2048",
               "offload.optimizer.device=cpu", "offload.optimizer.update=" + update});
  return tiny_recipe(1, more);
}

constexpr double kP = 12849664;  // 2 x 257 x 512 + 3 (4 x 512^2 + 3 x 512 x 2048 + 2 x 512) + 512

}  // namespace

TEST_CASE("a plan has the bytes of updates on the host to the byte, and their time by the host's memory") {
  MachineProfile card = card_profile("h100");
  card.host_memory_bytes_per_second = 50e9;
  const std::vector<std::string> halves = {"optimizer.grad_dtype=bf16", "train.global_batch_size=1"};
  const Plan host = make_plan(updated_on("cpu", halves), card),
             device = make_plan(updated_on("device", halves), card);
  const RankPlan &h = host.ranks.at(0), &d = device.ranks.at(0);
  CHECK(static_cast<double>(host.parameters) == kP);
  // ZeRO-Offload's 4 bytes a parameter, against master weights and two moments each way.
  CHECK(h.states_out_bytes == Approx(2 * kP).epsilon(1e-3));
  CHECK(h.states_in_bytes == Approx(2 * kP).epsilon(1e-3));
  CHECK(d.states_out_bytes == Approx(12 * kP).epsilon(1e-3));
  CHECK(d.states_in_bytes == Approx(12 * kP).epsilon(1e-3));
  // Master weights and moments are read and written, gradients read, weights written.
  CHECK(h.host_update_seconds == Approx(28 * kP / 50e9).epsilon(1e-3));
  CHECK(d.host_update_seconds == 0);
  // Two windows of gradients and weights lie beside the states; a layer has more elements than a window.
  const int64_t window = int64_t{1} << 22;
  CHECK(h.offloaded.optimizer - d.offloaded.optimizer == 2 * window * (2 + 2));
  for (const RankPlan* r : {&h, &d}) {
    const auto item = std::find_if(r->outside.begin(), r->outside.end(), [](const ExternalMemory& e) {
      return e.name == "offloaded optimizer states";
    });
    REQUIRE(item != r->outside.end());
    CHECK(item->bytes == r->offloaded.optimizer);
  }
  CHECK(h.arena.arena_bytes < d.arena.arena_bytes);  // no ring of states
  // Ranks of a node share its memory.
  const RankPlan shared = plan_rank(updated_on("cpu", halves), card, {}, 0, 2);
  CHECK(shared.host_update_seconds == h.host_update_seconds);
}

TEST_CASE("update: auto takes the faster of both by the plan, and the plan says how much faster") {
  MachineProfile card = card_profile("h100");
  card.offload_read_bytes_per_second = card.offload_write_bytes_per_second = 10e9;
  for (const auto& [memory, chosen] : {std::pair(400e9, "cpu"), std::pair(2e9, "device")}) {
    CAPTURE(chosen);
    card.host_memory_bytes_per_second = memory;
    const Plan automatic = make_plan(updated_on("auto"), card), by_hand = make_plan(updated_on(chosen), card);
    REQUIRE(automatic.update);
    CHECK(automatic.update->host == (chosen == std::string("cpu")));
    CHECK(automatic.update->automatic);
    CHECK(automatic.step_seconds() == by_hand.step_seconds());
    CHECK(automatic.step_seconds() ==
          Approx(std::min(automatic.update->host_seconds, automatic.update->device_seconds)).epsilon(1e-9));
    CHECK(automatic.ranks[0].offloaded == by_hand.ranks[0].offloaded);
    CHECK_THAT(plan_text(automatic, updated_on("auto")),
               Contains(fmt::format("offload.optimizer.update: auto chose {}: ", chosen)) &&
                   Contains(" ms a step less than "));
    CHECK_THAT(plan_text(by_hand, updated_on(chosen)),
               Contains(fmt::format("offload.optimizer.update: {}: ", chosen)));
    // Other ranks get the choice of rank 0.
    const PipelineLayout layout = pipeline_layout(updated_on("auto"), card);
    const PipelineLayout there = unpack_pipeline_layout(pack(layout));
    CHECK(there.update->host == automatic.update->host);
    CHECK(there.update->host_seconds == automatic.update->host_seconds);
    CHECK(program_options(updated_on("auto"), there).offload.host_update == automatic.update->host);
  }
}

TEST_CASE("updates on the host are refused with states in files, weights that leave, and an EMA") {
  const auto refused = [](const std::vector<std::string>& more) {
    try {
      updated_on("cpu", more);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  CHECK_THAT(refused({"offload.optimizer.device=nvme", "offload.optimizer.path=."}),
             Contains("offload.optimizer.update = cpu: the host updates states in its memory, and "
                      "offload.optimizer.device: nvme has them in files; nearest valid value: device, or "
                      "offload.optimizer.device: cpu"));
  CHECK_THAT(refused({"parallel.zero_stage=3", "offload.params.device=cpu"}),
             Contains("nearest valid value: device, or offload.params.device: none"));
  CHECK_THAT(refused({"train.ema_decay=0.9"}),
             Contains("nearest valid value: device, or train.ema_decay: 0"));
  CHECK(refused({}) == "accepted");
  // Steps on the CPU are updated by its cores under each value.
  CHECK_NOTHROW(tiny_recipe(1, {"offload.optimizer.device=nvme", "offload.optimizer.path=.",
                                "offload.optimizer.update=cpu", "train.ema_decay=0.9"}));
}
