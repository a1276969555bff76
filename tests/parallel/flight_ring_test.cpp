#include "parallel/comm/flight_ring.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>

using namespace ltrain;

namespace {

CollectiveInfo sum_of_16(uint64_t sequence) {
  return {CollectiveOp::all_reduce, sequence, 16, DType::f32, ReduceOp::sum, -1};
}

}  // namespace

TEST_CASE("the flight recorder has the last 1024 calls of all groups, with begin and end") {
  FlightRing ring;
  const FlightRecord a("a"), b("b");
  CHECK(ring.calls().empty());
  ring.enter(&a, 1, sum_of_16(1));
  ring.enter(&b, 1, sum_of_16(1));
  ring.complete(&b, 1);
  std::vector<FlightCall> calls = ring.calls();
  REQUIRE(calls.size() == 2);
  CHECK((calls[0].group == &a && calls[0].end_ns == 0 && calls[0].begin_ns > 0));
  CHECK((calls[1].group == &b && calls[1].end_ns >= calls[1].begin_ns));
  for (uint64_t i = 2; i <= 1500; ++i) ring.enter(&a, i, sum_of_16(i)), ring.complete(&a, i);
  ring.complete(&a, 1);  // overwritten: no effect
  calls = ring.calls();
  REQUIRE(calls.size() == FlightRing::kCalls);
  CHECK((calls.front().number == 1500 - 1023 && calls.back().number == 1500));
  for (const FlightCall& c : calls) CHECK((c.end_ns >= c.begin_ns && c.info.sequence == c.number));
}

TEST_CASE("the flight recorder of a process is fed by its groups") {
  const auto groups = make_in_process_group(1, "fed", Axis::data);
  const auto stream = make_inline_stream("compute");
  float value = 1;
  groups[0]->all_reduce(*stream, {&value, DType::f32, DeviceKind::cpu, {1}, nullptr});
  const std::vector<FlightCall> calls = flight_ring().calls();
  REQUIRE(!calls.empty());
  CHECK((calls.back().group == groups[0]->flight().get() && calls.back().info.elements == 1));
  CHECK(calls.back().end_ns > 0);
}

TEST_CASE("time of a call in the flight recorder", "[.time]") {
  const FlightRecord a("a");
  const auto begin = std::chrono::steady_clock::now();
  constexpr uint64_t kCalls = 1000000;
  for (uint64_t i = 1; i <= kCalls; ++i)
    flight_ring().enter(&a, i, sum_of_16(i)), flight_ring().complete(&a, i);
  const double ns =
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kCalls;
  std::printf("%.0f ns a call\n", ns);
  CHECK(ns < 5000);
}
