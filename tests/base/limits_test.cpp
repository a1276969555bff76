#include "base/limits.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

using namespace ltrain;
using Catch::Contains;

TEST_CASE("what the C++ library says of a limit is a limit, not a defect of ltrain") {
  const std::system_error thread(EAGAIN, std::generic_category());
  CHECK(as_error(thread).code() == ExitCode::usage);
  CHECK_THAT(as_error(thread).what(), Contains("a thread cannot be started"));
  CHECK(as_error(std::system_error(EMFILE, std::generic_category())).code() == ExitCode::usage);
  CHECK_THAT(as_error(std::system_error(EMFILE, std::generic_category())).what(), Contains("ulimit -n"));
  CHECK(as_error(std::system_error(ENOSPC, std::generic_category())).code() == ExitCode::storage);
  CHECK(as_error(std::system_error(EFBIG, std::generic_category())).code() == ExitCode::storage);
  CHECK(as_error(std::bad_alloc()).code() == ExitCode::usage);
  CHECK_THAT(as_error(std::bad_alloc()).what(), Contains("no memory is left"));
}

TEST_CASE("any other exception is an internal error, and an Error stays what it is") {
  CHECK(as_error(std::runtime_error("odd")).code() == ExitCode::internal);
  CHECK(std::string(as_error(std::runtime_error("odd")).what()) == "internal error: odd");
  CHECK(as_error(std::system_error(EPERM, std::generic_category())).code() == ExitCode::internal);
  const Error lost(ExitCode::rank_lost, "gone");
  CHECK(as_error(lost).code() == ExitCode::rank_lost);
  CHECK(std::string(as_error(lost).what()) == "gone");
}

TEST_CASE("a failed system call has the exit code of its limit, else the caller's") {
  const auto code_of = [](int error) {
    try {
      fail_system("open", error, ExitCode::rank_lost);
    } catch (const Error& e) {
      return e.code();
    }
  };
  CHECK(code_of(EMFILE) == ExitCode::usage);
  CHECK(code_of(EAGAIN) == ExitCode::usage);
  CHECK(code_of(EFBIG) == ExitCode::storage);
  CHECK(code_of(ECONNREFUSED) == ExitCode::rank_lost);
}
