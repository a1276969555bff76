// Facts about cards from NVIDIA's management library, by a stand-in for it.
#include <dlfcn.h>

#include <catch2/catch.hpp>

#include "kernels/cuda/nvml.h"

using namespace ltrain;

namespace {

/// Found from now on by whoever opens libnvidia-ml.so.1.
void load_standin() {
  static void* const library = ::dlopen(LTRAIN_NVML_STANDIN, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
}

using Links = std::vector<std::vector<bool>>;

}  // namespace

TEST_CASE("cards that NVLink joins are those of NVML, and none where it does not know one") {
  load_standin();
  CHECK(cuda::nvlinks_between({"0000:C3:00.0", "0000:19:00.0", "0000:18:00.0"}) ==
        Links{{false, false, false}, {false, false, true}, {false, true, false}});
  CHECK(cuda::nvlinks_between({"0000:18:00.0", "0000:99:00.0"}) == Links{{false, false}, {false, false}});
  CHECK(cuda::nvlinks_between({"0000:18:00.0"}) == Links{{false}});
}

TEST_CASE("processes on a card, with what they hold where NVML may say it") {
  load_standin();
  CHECK(cuda::processes_on("0000:18:00.0") == "\nprocess 4711 holds 12345678 bytes");
  CHECK(cuda::processes_on("0000:19:00.0") == "\nprocess 4712 is on it");
  CHECK(cuda::processes_on("0000:C3:00.0") == "; NVML names no process on it");
  CHECK(cuda::processes_on("0000:99:00.0") == "; who has the rest is not known: NVML does not say");
}

TEST_CASE(
    "sensors of a GPU have NVML's numbers in their units, and lack what the driver refuses, said once") {
  load_standin();
  cuda::GpuSensors sensors("0000:19:00.0");
  const GpuReading hot = sensors.read();
  CHECK(hot.sm_clock_mhz == 1200);
  CHECK(hot.power_w == 500.25);
  CHECK(hot.temperature_c == 91);
  CHECK(hot.throttle_reasons == (kHardwareThermal | kHardwareSlowdown));
  CHECK(hot.memory_used_mib == 3);
  CHECK((hot.ecc_corrected == 7 && hot.ecc_uncorrected == 1));
  CHECK(hot.nvlink_replays == 5);
  CHECK(!hot.pcie_replays);
  REQUIRE(hot.energy_j);
  CHECK(*sensors.read().energy_j >= *hot.energy_j);
  const auto refused = sensors.refusals();
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].find("PCIe replays (libnvidia-ml has no nvmlDeviceGetPcieReplayCounter") == 0);
  sensors.read();
  CHECK(sensors.refusals().empty());

  cuda::GpuSensors other("0000:C3:00.0");
  const GpuReading few = other.read();
  CHECK((few.sm_clock_mhz == 1980 && few.temperature_c == 55));
  CHECK((!few.power_w && !few.energy_j && !few.ecc_corrected && !few.ecc_uncorrected && !few.nvlink_replays));
  CHECK(other.refusals() ==
        std::vector<std::string>{
            "power (Not Supported)", "energy (Not Supported)", "corrected ECC errors (Not Supported)",
            "uncorrected ECC errors (Not Supported)", "NVLink replays (no link counts them)",
            "PCIe replays (" + refused[0].substr(refused[0].find('(') + 1)});

  cuda::GpuSensors none("0000:99:00.0");
  CHECK(!none.read().sm_clock_mhz);
  CHECK(none.refusals() == std::vector<std::string>{"numbers of the GPU (Not Found)"});
}
