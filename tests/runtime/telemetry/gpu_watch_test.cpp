// Readings of GPUs over time and ranks, from sensors of the test.
#include "runtime/telemetry/gpu_watch.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

using namespace ltrain;
using Catch::Contains;

namespace {

GpuReading reading(double mhz, unsigned reasons = 0, double celsius = 50) {
  GpuReading r;
  r.sm_clock_mhz = mhz, r.throttle_reasons = reasons, r.temperature_c = celsius;
  return r;
}

}  // namespace

TEST_CASE("the mean of a GPU's readings: mean clock, highest temperature, reasons of half of them") {
  GpuMean m;
  m.add(reading(1000, kPowerCap, 60));
  m.add(reading(2000, kPowerCap | kHardwareThermal, 80));
  m.add(reading(1500, 0, 70));
  GpuReading with_power = reading(1500, kSoftwareThermal, 70);
  with_power.power_w = 300, with_power.energy_j = 12345;
  m.add(with_power);
  const GpuReading mean = m.mean();
  CHECK(mean.sm_clock_mhz == 1500);
  CHECK(mean.temperature_c == 80);
  CHECK(mean.throttle_reasons == kPowerCap);
  CHECK(mean.power_w == 300);  // the other readings had none
  CHECK(mean.energy_j == 12345);
  CHECK(!mean.ecc_corrected);
}

TEST_CASE("a GPU that is throttled by heat is told once, and so is its end, but not a power cap") {
  GpuAlarm alarm;
  std::vector<std::string> said;
  const auto add = [&](const GpuReading& r, int times) {
    for (int i = 0; i < times; ++i)
      for (const std::string& note : alarm.add("rank 3", r)) said.push_back(note);
  };
  add(reading(1700, kPowerCap), 100);
  add(reading(1200, kHardwareThermal | kHardwareSlowdown, 91), 2);  // too short
  add(reading(1700, 0), 1);
  CHECK(said.empty());
  add(reading(1200, kHardwareThermal | kHardwareSlowdown | kPowerCap, 91), 100);
  CHECK(said == std::vector<std::string>{
                    "warning: the GPU of rank 3 is throttled by temperature, SM clock 1200 MHz, 91 C"});
  for (int i = 0; i < 10; ++i) add(reading(1900), 5), add(reading(1200, kSoftwareThermal), 5);  // flutters
  CHECK(said.size() == 1);
  add(reading(1900), 40);
  REQUIRE(said.size() == 2);
  CHECK(said[1] == "the GPU of rank 3 is no longer throttled by temperature");
}

TEST_CASE("uncorrected ECC errors are told when they grow during the run, not those from before") {
  GpuAlarm alarm;
  GpuReading r = reading(1900);
  r.ecc_uncorrected = 4;
  CHECK(alarm.add("rank 0", r).empty());
  r.ecc_uncorrected = 6;
  CHECK_THAT(alarm.add("rank 0", r).at(0),
             Contains("the GPU of rank 0 counts 2 uncorrected ECC errors more"));
  CHECK(alarm.add("rank 0", r).empty());
}

TEST_CASE("a watch reads beside its owner: a run's energy, means since the last call, refusals") {
  std::atomic<double> joules{1000};
  GpuWatch watch;
  CHECK(!watch.newest().sm_clock_mhz);  // not started
  CHECK(!watch.run().energy_j);
  watch.start(
      [&] {
        return [&](std::vector<std::string>& refusals) {
          refusals = {"power (Not Supported)"};
          GpuReading r = reading(1500);
          r.energy_j = joules.load();
          return r;
        };
      },
      "rank 0", 3600);
  watch.begin_run();
  joules = 1250;
  const GpuReading run = watch.run();
  CHECK(run.energy_j == 250);
  CHECK(run.sm_clock_mhz == 1500);
  CHECK(watch.readings() >= 2);
  CHECK(watch.reading_seconds() >= 0);
  CHECK(watch.take_mean().energy_j == 1250);
  CHECK(watch.take_mean().energy_j == 1250);  // the newest one: there was no reading in between
  CHECK(watch.refusals().at(0) ==
        "metrics lack what NVML does not give for the GPU of rank 0: power (Not Supported)");
  CHECK(watch.notes().empty());
}

TEST_CASE("a driver that does not answer holds up neither the run nor its end for long") {
  const auto forever = std::make_shared<std::atomic<bool>>(true);
  const auto begin = std::chrono::steady_clock::now();
  {
    GpuWatch watch;
    watch.start(
        [forever] {
          while (*forever) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          return [](std::vector<std::string>&) { return GpuReading(); };
        },
        "rank 0", 3600);
    watch.begin_run();
    CHECK(!watch.newest().sm_clock_mhz);
  }
  *forever = false;
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("the summary of a run has energy a token only if all GPUs give their energy") {
  GpuReading a = reading(1500, 0, 60), b = reading(1700, kHardwareThermal, 90);
  a.energy_j = 3000, b.energy_j = 5000, a.power_w = 400, b.power_w = 500;
  CHECK(gpu_summary({a, b}, 16000) ==
        "2 GPUs: 8.0 kJ, 0.5 J a token, mean SM clock 1600 MHz, mean power 450 W, at most 90 C (rank 1), "
        "rank 1 "
        "mostly throttled by temperature");
  b.energy_j.reset();
  CHECK(gpu_summary({a, b}, 16000).find("2 GPUs: mean SM clock 1600 MHz") == 0);
  CHECK(gpu_summary({a}, 0) == "1 GPU: 3.0 kJ, mean SM clock 1500 MHz, mean power 400 W, at most 60 C");
  CHECK(gpu_summary({GpuReading()}, 100).empty());
}
