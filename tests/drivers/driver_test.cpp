// Messages of a start with a driver that is too old, or that shows no card, before anything is launched. One
// process per case: CUDA asks for the driver once.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "kernels/tensor/stream_cuda.h"
#include "tests/support/outcome.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// False, and the test counts as skipped, where a driver is: CUDA would ask that one.
bool stand_in_for_driver(const char* version) {
  if (::dlopen("libcuda.so.1", RTLD_LAZY)) {
    skip_test("a driver is here");
    return false;
  }
  ::setenv("LTRAIN_STANDIN_DRIVER", version, 1);
  REQUIRE(::dlopen(LTRAIN_DRIVER_STANDIN, RTLD_NOW | RTLD_GLOBAL));
  return true;
}

}  // namespace

TEST_CASE("a driver that is too old for the build is named, with the one that it needs") {
  if (!stand_in_for_driver("11080")) return;
  const std::string why = cuda::no_device_reason();
  INFO(why);
  CHECK(why.find("the driver is for CUDA 11.8, and this build needs one for CUDA 1") == 0);
  CHECK((why.find("(580 or newer)") != std::string::npos || why.find("(525 or newer)") != std::string::npos));
}

TEST_CASE("a driver that shows no card is told apart from one that is too old") {
  if (!stand_in_for_driver("13000")) return;
  const std::string why = cuda::no_device_reason();
  INFO(why);
  CHECK(why.find("no GPU that can be used: ") == 0);
}
