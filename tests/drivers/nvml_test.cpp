// Facts about cards from NVIDIA's management library, by a stand-in for it.
#include <dlfcn.h>

#include <catch2/catch.hpp>

#include "kernels/cuda/nvml_cuda.h"

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
