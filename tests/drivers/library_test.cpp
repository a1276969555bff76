// Choice between several files of a library: folders of LTRAIN_CUDA_LIBS win over the loader's.
#include "kernels/cuda/library.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/temporary_folder.h"

using namespace ltrain;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  ::pclose(pipe);
  return text;
}

/// "NCCL ...": the row of `ltrain doctor`, and the advice below it.
std::string nccl_row(const std::string& variables) {
  const std::string text = output_of(variables + " " LTRAIN_BINARY " doctor");
  const size_t begin = text.find(" NCCL ");
  REQUIRE(begin != std::string::npos);
  return text.substr(begin, 400);
}

}  // namespace

TEST_CASE("a library in a folder of LTRAIN_CUDA_LIBS is taken before the loader's own") {
  const cuda::Library own("libm", {6});
  REQUIRE(own.found());
  const test::TemporaryFolder folder;
  fs::copy_file(own.path(), folder.path() + "/libm.so.6");
  ::setenv("LTRAIN_CUDA_LIBS", ("/nowhere:" + folder.path()).c_str(), 1);
  const cuda::Library named("libm", {6});
  ::unsetenv("LTRAIN_CUDA_LIBS");
  CHECK(named.path() == fs::canonical(folder.path()).string() + "/libm.so.6");
  CHECK(named.path() != own.path());
}

TEST_CASE("doctor prints path and version of a library, and a newer one that is not taken") {
  const std::string old = fs::path(LTRAIN_OLD_NCCL).parent_path(),
                    fresh = fs::path(LTRAIN_NEW_NCCL).parent_path();
  const std::string taken_old = nccl_row("LTRAIN_CUDA_LIBS=" + old + " LD_LIBRARY_PATH=" + fresh);
  CHECK_THAT(taken_old, Contains("2.3.4, " + fs::canonical(LTRAIN_OLD_NCCL).string()));
  CHECK_THAT(taken_old,
             Contains("99.1.2 in " + fs::canonical(LTRAIN_NEW_NCCL).string() + " is newer and not taken"));
  const std::string taken_new = nccl_row("LTRAIN_CUDA_LIBS=" + fresh + ":" + old);
  CHECK_THAT(taken_new, Contains("99.1.2, " + fs::canonical(LTRAIN_NEW_NCCL).string()));
  CHECK(taken_new.substr(0, taken_new.find('\n')).find("newer") == std::string::npos);
}
