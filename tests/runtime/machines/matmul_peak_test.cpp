// The rate that MFU is a share of.
#include "runtime/machines/matmul_peak.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

using namespace ltrain;
using Catch::Contains;

namespace {

struct PeaksFile {
  test::TemporaryFolder folder;
  const std::string path = folder.path() + "/peaks.json";
  MatmulPeaks peaks() const { return MatmulPeaks(path); }
};

}  // namespace

TEST_CASE("a matmul peak is the best of several measurements, for each type, number of threads and of ranks",
          "[plan]") {
  const PeaksFile file;
  const auto find = [&] { return file.peaks().find(DType::f32, 2, 1); };
  CHECK(find().flops == 0);
  CHECK_FALSE(find().enough());
  file.peaks().keep(DType::f32, 2, 1, 5e10);  // beside other work
  CHECK(find().flops == 5e10);
  CHECK_FALSE(find().enough());
  file.peaks().keep(DType::f32, 2, 1, 9e10);
  file.peaks().keep(DType::f32, 2, 1, 7e10);
  CHECK(find().flops == 9e10);
  CHECK(find().enough());
  CHECK(file.peaks().find(DType::f32, 1, 1).flops == 0);
  CHECK(file.peaks().find(DType::bf16, 2, 1).flops == 0);
}

TEST_CASE("a matmul peak that a run was faster than is measured again, and is at least the run's rate",
          "[plan]") {
  const PeaksFile file;
  for (int i = 0; i < MatmulPeaks::kEnough; ++i) file.peaks().keep(DType::f32, 2, 1, 5e10);
  REQUIRE(file.peaks().find(DType::f32, 2, 1).enough());
  file.peaks().exceeded(DType::f32, 2, 1, 6e10);
  CHECK_FALSE(file.peaks().find(DType::f32, 2, 1).enough());
  file.peaks().keep(DType::f32, 2, 1, 5.5e10);
  CHECK(file.peaks().find(DType::f32, 2, 1).flops == 6e10);
}

TEST_CASE("a file of peaks that is damaged, or of numbers alone, is read as far as it goes", "[plan]") {
  const PeaksFile file;
  file.peaks().keep(DType::f32, 2, 1, 5e10);
  std::ifstream in(file.path);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t open = text.find('{', 1), close = text.find('}');
  REQUIRE(close < text.size());
  // The format of earlier versions.
  std::ofstream(file.path) << text.substr(0, open) << "4e10" << text.substr(close + 1);
  CHECK(file.peaks().find(DType::f32, 2, 1).flops == 4e10);
  CHECK_FALSE(file.peaks().find(DType::f32, 2, 1).enough());
  std::ofstream(file.path) << "{";
  CHECK(file.peaks().find(DType::f32, 2, 1).flops == 0);
}

TEST_CASE("MFU is never above one, and a peak that was too low is said once", "[plan]") {
  PeakShare share;
  CHECK(std::isnan(share.of(1e9)));
  share.begin(100e9);
  CHECK(share.of(25e9) == 0.25);
  CHECK(share.note(1, false).empty());
  CHECK(share.of(104e9) == 1);
  const std::string note = share.note(2, false);
  CHECK_THAT(note, Contains("step 2: computes 104.0 % of the fastest matmul that was measured here") &&
                       Contains("the next runs measure again"));
  CHECK(share.of(52e9) == 0.5);  // share of the step's rate from here on
  CHECK(share.of(110e9) == 1);
  CHECK(share.note(4, false).empty());
  PeakShare benched;
  benched.begin(1);
  CHECK(benched.of(2) == 1);
  CHECK_THAT(benched.note(1, true), Contains("`ltrain bench` measures again"));
}
