// offload.*.device: auto: the placement with the shortest planned step that fits.
#include <catch2/catch.hpp>

#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/offload_choice.h"
#include "tests/runtime/plan/tiny_recipe.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

Recipe on_card(std::vector<std::string> more) {
  more.insert(more.begin(),
              {"device=cuda", "precision=bf16", "model.hidden_size=512", "model.intermediate_size=2048"});
  return tiny_recipe(1, more);
}

/// Planned bytes of a rank and seconds of a step.
std::pair<int64_t, double> planned(const std::vector<std::string>& settings, const MachineProfile& card) {
  const Plan plan = make_plan(on_card(settings), card);
  return {plan.ranks.at(0).total_bytes, plan.step_seconds()};
}

}  // namespace

TEST_CASE("offload: auto leaves all on the card where it fits, and takes the only placement that fits else") {
  MachineProfile card = card_profile("h100");
  const Recipe automatic = on_card({"offload.optimizer.device=auto"});
  const int64_t stays = planned({}, card).first,
                leaves = planned({"offload.optimizer.device=cpu"}, card).first;
  REQUIRE(leaves < stays);

  const OffloadChoice roomy = choose_offload(automatic, card);
  CHECK(roomy.devices.optimizer == OffloadDevice::none);
  CHECK_THAT(roomy.text, Contains("auto chose optimizer: none") && Contains("fits without transfers"));

  card.device_bytes = (stays + leaves) / 2;
  const OffloadChoice tight = choose_offload(automatic, card);
  CHECK(tight.devices.optimizer == OffloadDevice::cpu);
  CHECK_THAT(tight.text, Contains("auto chose optimizer: cpu") &&
                             Contains("the only one that fits; optimizer: none: "
                                      "a rank needs") &&
                             Contains("which does not fit"));
  Recipe chosen = automatic;
  set_offload(chosen, tight.devices);
  CHECK_FALSE(chooses_offload(chosen));
  CHECK(fits(make_plan(chosen, card)));

  card.device_bytes = leaves - 1;
  const OffloadChoice none = choose_offload(automatic, card);
  CHECK(none.devices.optimizer == OffloadDevice::cpu);
  CHECK_THAT(none.text, Contains("none of which fits"));
}

TEST_CASE("offload: auto chooses sections together, and the fastest of those that fit") {
  MachineProfile card = card_profile("h100");
  card.offload_read_bytes_per_second = card.offload_write_bytes_per_second = 10e9;
  const std::string states = "offload.optimizer.device=", activations = "offload.activations.device=";
  const auto [most, fastest] = planned({}, card);
  const auto [a, seconds_a] = planned({states + "cpu"}, card);
  const auto [b, seconds_b] = planned({activations + "cpu"}, card);
  const auto [both, seconds] = planned({states + "cpu", activations + "cpu"}, card);
  REQUIRE(both < std::min(a, b));
  REQUIRE(std::max(a, b) < most);
  REQUIRE(fastest < std::min(seconds_a, seconds_b));
  const Recipe automatic = on_card({states + "auto", activations + "auto"});
  card.device_bytes = (both + std::min(a, b)) / 2;
  const OffloadChoice tight = choose_offload(automatic, card);
  CHECK(tight.devices.optimizer == OffloadDevice::cpu);
  CHECK(tight.devices.activations == OffloadDevice::cpu);

  card.device_bytes = (std::max(a, b) + most) / 2;  // three fit, and one section away is enough
  const OffloadChoice one = choose_offload(automatic, card);
  const bool states_leave = seconds_a <= seconds_b;
  CHECK((one.devices.optimizer == OffloadDevice::cpu) == states_leave);
  CHECK((one.devices.activations == OffloadDevice::cpu) != states_leave);
  CHECK_THAT(one.text, Contains("the fastest of 3 that fit"));
}

TEST_CASE("offload: auto takes files only where a path is given, and host memory where that is faster") {
  MachineProfile card = card_profile("h100");
  card.device_bytes = (planned({}, card).first + planned({"offload.optimizer.device=cpu"}, card).first) / 2;
  const Recipe automatic = on_card({"offload.optimizer.device=auto", "offload.optimizer.path=."});
  const OffloadChoice choice = choose_offload(automatic, card);
  CHECK(choice.devices.optimizer == OffloadDevice::cpu);
  CHECK_THAT(choice.text, Contains("; optimizer: nvme: a rank needs"));
  CHECK_THAT(choose_offload(on_card({"offload.optimizer.device=auto"}), card).text, !Contains("nvme"));
}

TEST_CASE("a layout hands the chosen devices of offload to the other ranks") {
  PipelineLayout layout;
  layout.offload = OffloadDevices{.optimizer = OffloadDevice::nvme, .activations = OffloadDevice::cpu};
  const PipelineLayout other = unpack_pipeline_layout(pack(layout));
  REQUIRE(other.offload);
  CHECK(other.offload->optimizer == OffloadDevice::nvme);
  CHECK(other.offload->params == OffloadDevice::none);
  CHECK(other.offload->activations == OffloadDevice::cpu);
  CHECK_FALSE(unpack_pipeline_layout(pack(PipelineLayout{})).offload);
}
